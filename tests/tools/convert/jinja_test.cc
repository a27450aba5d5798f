// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/jinja.h"

#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace deltaedge {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<std::string> Render(
    const std::string& source,
    const nlohmann::json& variables = nlohmann::json::object()) {
  const absl::StatusOr<JinjaTemplate> jinja = JinjaTemplate::Parse(source);
  if (!jinja.ok()) return jinja.status();
  return jinja->Render(variables);
}

std::string Repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

TEST(Jinja, RendersAsTheReference) {
  std::ifstream file("tests/testdata/tokenizer/jinja.json");
  const nlohmann::json golden =
      nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(golden.is_object());
  ASSERT_GT(golden["cases"].size(), 40u);
  for (const nlohmann::json& c : golden["cases"]) {
    const absl::StatusOr<std::string> text =
        Render(c["template"].get<std::string>(), golden["variables"]);
    ASSERT_TRUE(text.ok()) << c["template"] << ": " << text.status();
    EXPECT_EQ(*text, c["text"].get<std::string>()) << c["template"];
  }
}

TEST(Jinja, NamesWhatItDoesNotKnow) {
  const struct {
    const char *source, *name;
  } cases[] = {
      {"{% include 'x' %}", "statement 'include'"},
      {"{% import 'x' as y %}", "statement 'import'"},
      {"{% raw %}{% endraw %}", "statement 'raw'"},
      {"{% call f() %}{% endcall %}", "statement 'call'"},
      {"{% for x in y %}{% break %}{% endfor %}", "statement 'break'"},
      {"{% for x in y recursive %}{% endfor %}", "recursive"},
      {"{% set a, b = c %}", "set of several targets"},
      {"{{ x|sort }}", "filter 'sort'"},
      {"{{ x|map(attribute='y') }}", "filter 'map'"},
      {"{{ x is divisibleby 3 }}", "test 'divisibleby'"},
      {"{{ x.format(1) }}", "method 'format'"},
      {"{{ loop.cycle('a', 'b') }}", "method 'cycle'"},
      {"{{ strftime_now('%d') }}", "function 'strftime_now'"},
      {"{{ 4 / 2 }}", "operator '/'"},
      {"{{ 2 ** 3 }}", "operator '**'"},
      {"{{ 1 < x < 3 }}", "chain of comparisons"},
      {"{{ 'a\\x41' }}", "escape '\\x'"},
      {"{{ x()() }}", "function 'x'"},
      {"{{ x[0](1) }}", "call of a value"},
      // In a branch that never runs, too.
      {"{% if false %}\n\n{{ x|sort }}{% endif %}", "line 3"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Render(c.source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << c.source;
    EXPECT_THAT(status.message(), HasSubstr(c.name));
  }
}

TEST(Jinja, UnsoundTemplates) {
  for (const char* source : {"{{ ",
                             "{{ x",
                             "{{ 'x }}",
                             "{% if x %}",
                             "{% if x %}{% endfor %}",
                             "{% for in x %}{% endfor %}",
                             "{% for x y %}{% endfor %}",
                             "{{ x y }}",
                             "{{ ) }}",
                             "{{ (x }}",
                             "{{ [1 }}",
                             "{{ {1} }}",
                             "{{ x. }}",
                             "{{ x| }}",
                             "{{ x is }}",
                             "{% set %}",
                             "{% set x = %}",
                             "{{ x[] }}",
                             "{% macro %}{% endmacro %}",
                             "{{ x ! y }}",
                             "{{ \xFF }}",
                             "{# ",
                             "{{ 99999999999999999999 }}",
                             "{{ a[1:2:3:4] }}",
                             "{{}}",
                             "{% %}"}) {
    const absl::Status status = Render(source).status();
    EXPECT_FALSE(status.ok()) << source;
    EXPECT_FALSE(status.message().empty()) << source;
  }
}

TEST(Jinja, FailuresOfARunNameTheLine) {
  const struct {
    const char *source, *message;
  } cases[] = {
      {"\n{{ missing.x }}", "line 2: 'missing' is undefined"},
      {"{{ missing['x'] }}", "'missing' is undefined"},
      {"{{ 'a' + 1 }}", "no + for string and integer"},
      {"{{ missing + 'a' }}", "no + for undefined and string"},
      {"{{ 'a' < 1 }}", "no < for string and integer"},
      {"{{ 1 // 0 }}", "division by zero"},
      {"{% for x in 3 %}{% endfor %}", "a integer has no items"},
      {"{% for a, b in ['x'] %}{% endfor %}", "cannot take a string apart"},
      {"{% set x = 1 %}{% set x.y = 2 %}", "'x' is no namespace"},
      {"{{ [1] }}", "cannot write a list"},
      {"{{ 'a'.split() }}", "'split' of a string"},
      {"{{ 'a'.get('b') }}", "'get' of a string"},
      {"{{ '\xC3\xA9'|upper }}", "beyond ASCII"},
      {"{{ range(99999999) }}", "range is too long"},
      {"{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "too many arguments"},
  };
  for (const auto& c : cases) {
    const absl::Status status = Render(c.source).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.source;
    EXPECT_THAT(status.message(), HasSubstr(c.message)) << c.source;
  }
}

TEST(Jinja, RaiseException) {
  const absl::Status status =
      Render("a{{ raise_exception('No ' ~ 'way.') }}b").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "No way.");
}

// Whatever a template holds, reading and running it ends soon and within
// bounds of memory and stack.
TEST(Jinja, HostileTemplatesEnd) {
  constexpr int kMany = 20000;
  const std::string cases[] = {
      "{{ " + Repeat("(", kMany) + "x" + Repeat(")", kMany) + " }}",
      "{{ " + Repeat("[", kMany) + Repeat("]", kMany) + " }}",
      "{{ " + Repeat("not ", kMany) + "x }}",
      "{{ " + Repeat("- ", kMany) + "x }}",
      "{{ x" + Repeat(" + x", kMany) + " }}",
      "{{ x" + Repeat(".x", kMany) + " }}",
      "{{ x" + Repeat("|trim", kMany) + " }}",
      "{{ x" + Repeat(" if x else x", kMany) + " }}",
      Repeat("{% if x %}", kMany) + Repeat("{% endif %}", kMany),
      std::string((1 << 20) + 1, 'a'),
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in "
      "range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
      "{% set n = namespace(s='xxxxxxxxxx') %}{% for a in range(99) %}"
      "{% set n.s = n.s + n.s %}{% endfor %}",
      "{% set n = namespace(l=[]) %}{% for a in range(9999) %}"
      "{% set n.l = [n.l] %}{% endfor %}",
      "{% set n = namespace() %}{% set n.n = n %}",
      "{% set n = namespace() %}{% set n.n = [n] %}",
      "{% for a in range(9999) %}{% for b in range(9999) %}aaaaaaaaaa"
      "{% endfor %}{% endfor %}",
      "{% set n = namespace(i=2) %}{% for a in range(99) %}"
      "{% set n.i = n.i * n.i %}{% endfor %}",
  };
  for (const std::string& source : cases) {
    EXPECT_FALSE(Render(source, {{"x", "y"}}).ok()) << source.substr(0, 60);
  }
}

}  // namespace
}  // namespace deltaedge
