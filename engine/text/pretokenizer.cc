// SPDX-License-Identifier: Apache-2.0

#include "engine/text/pretokenizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/text/utf8.h"
#include "pcre2.h"

namespace deltaedge {
namespace {

// Members of a bracketed class: Unicode's White_Space.
constexpr absl::string_view kWhiteSpace =
    R"(\x{9}-\x{d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029})"
    R"(\x{202f}\x{205f}\x{3000})";

struct FreeCode {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* p) const {
    pcre2_compile_context_free(p);
  }
};
struct FreeMatchContext {
  void operator()(pcre2_match_context* p) const { pcre2_match_context_free(p); }
};
struct FreeMatchData {
  void operator()(pcre2_match_data* p) const { pcre2_match_data_free(p); }
};

std::string Pcre2Message(int error) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(error, buffer, sizeof(buffer)) < 0) {
    return absl::StrCat("error ", error);
  }
  return reinterpret_cast<const char*>(buffer);
}

// Whether what follows a member of a class makes it the beginning of a range.
bool IsRange(absl::string_view rest) {
  return rest.size() > 1 && rest[0] == '-' && rest[1] != ']';
}

// Writes out `\s` and `\S`, which mean something else to PCRE2. What would make
// it take members of a class for what they are not is refused.
absl::StatusOr<std::string> WriteOutWhiteSpace(absl::string_view expression) {
  const auto unsupported = [](absl::string_view what, size_t at) {
    return absl::InvalidArgumentError(
        absl::StrCat("pretokenizer expression: ", what, ", at byte ", at,
                     ", is not supported"));
  };
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < expression.size(); ++i) {
    const char c = expression[i];
    if (c == '\\' && i + 1 < expression.size()) {
      const char escaped = expression[++i];
      if (escaped == 'Q') {
        return unsupported("quoting with \\Q", i - 1);
      } else if (escaped == 's') {
        if (in_class && IsRange(expression.substr(i + 1))) {
          return unsupported("a range that begins with \\s", i - 1);
        }
        in_class ? absl::StrAppend(&out, kWhiteSpace)
                 : absl::StrAppend(&out, "[", kWhiteSpace, "]");
      } else if (escaped == 'S') {
        if (in_class) {
          return unsupported("\\S inside a bracketed class", i - 1);
        }
        absl::StrAppend(&out, "[^", kWhiteSpace, "]");
      } else {
        out += {c, escaped};
      }
      continue;
    }
    out += c;
    if (in_class && c == '[' && i + 1 < expression.size() &&
        absl::StrContains(":.=", expression[i + 1])) {
      return unsupported("a class with a POSIX name, such as [:alpha:]", i);
    }
    if (!in_class && c == '[') {
      in_class = true;
      // A bracket that comes first is a member and does not close the class.
      if (i + 1 < expression.size() && expression[i + 1] == '^') {
        out += expression[++i];
      }
      if (i + 1 < expression.size() && expression[i + 1] == ']') {
        out += expression[++i];
      }
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return out;
}

}  // namespace

struct Pretokenizer::Compiled {
  std::unique_ptr<pcre2_code, FreeCode> code;
};

Pretokenizer::Pretokenizer(std::unique_ptr<const Compiled> compiled)
    : compiled_(std::move(compiled)) {}
Pretokenizer::~Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;

absl::StatusOr<Pretokenizer> Pretokenizer::Make(absl::string_view expression) {
  if (expression.size() > kMaxExpressionBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("pretokenizer expression has ", expression.size(),
                     " bytes; at most ", kMaxExpressionBytes, " are allowed"));
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckUtf8(expression, "pretokenizer expression"));
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string pattern,
                             WriteOutWhiteSpace(expression));

  // \C would cut characters in two.
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK;
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Compiled>();
  compiled->code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                    pattern.size(), kOptions, &error, &offset, nullptr));
  if (compiled->code == nullptr) {
    if (error == PCRE2_ERROR_NOMEMORY) {
      return absl::ResourceExhaustedError(
          "no memory to compile the pretokenizer expression");
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "pretokenizer expression is unsound: ", Pcre2Message(error),
        ", before \"", pattern.substr(std::min(offset, pattern.size()), 32),
        "\" at byte ", offset, " of ", pattern.size()));
  }
  return Pretokenizer(std::move(compiled));
}

absl::StatusOr<std::vector<absl::string_view>> Pretokenizer::Split(
    absl::string_view text) const {
  std::vector<absl::string_view> pieces;
  if (text.empty()) return pieces;

  const std::unique_ptr<pcre2_match_context, FreeMatchContext> context(
      pcre2_match_context_create(nullptr));
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(
      pcre2_match_data_create(1, nullptr));
  if (context == nullptr || match == nullptr) {
    return absl::ResourceExhaustedError("no memory to split a text");
  }
  // One backtrack per character and alternative is normal in a long run of
  // blanks; anything that grows faster than the text is not.
  const uint32_t steps = static_cast<uint32_t>(std::min<uint64_t>(
      uint64_t{1000000} + 16 * uint64_t{text.size()}, UINT32_MAX));
  pcre2_set_match_limit(context.get(), steps);
  constexpr uint32_t kMaxHeapKib = 256 * 1024;
  pcre2_set_heap_limit(context.get(), kMaxHeapKib);

  const PCRE2_SPTR subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;   // All before it is in `pieces`.
  size_t start = 0;  // Where the next match may begin.
  while (start <= text.size()) {
    // The text is UTF-8; checking it anew from each match would be quadratic.
    const int found =
        pcre2_match(compiled_->code.get(), subject, text.size(), start,
                    PCRE2_NO_UTF_CHECK, match.get(), context.get());
    if (found == PCRE2_ERROR_NOMATCH) break;
    if (found < 0) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "pretokenizer expression fails on a text of ", text.size(),
          " bytes, from byte ", start, ": ", Pcre2Message(found)));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match.get());
    const size_t begin = bounds[0], end = bounds[1];
    if (begin < start || end < begin) {
      return absl::InvalidArgumentError(
          absl::StrCat("pretokenizer expression matches backwards at byte ",
                       start, " of a text"));
    }
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
    done = end;
    start = end;
    if (end == begin) {
      if (end == text.size()) break;
      start += NextUtf8(text.substr(end)).bytes;
    }
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
  return pieces;
}

}  // namespace deltaedge
