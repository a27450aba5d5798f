// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/jinja.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "engine/text/utf8.h"
#include "nlohmann/json.hpp"

namespace deltaedge {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;
constexpr size_t kMaxTextBytes = size_t{1} << 20;
constexpr int kMaxDepth = 100;      // Of blocks and parentheses.
constexpr int kMaxTreeDepth = 400;  // Of an expression.
constexpr int kMaxNesting = 30;     // Of lists and dicts.
constexpr int kMaxSteps = 200000;
constexpr int64_t kMaxRange = 10000;

absl::Status AtLine(absl::StatusCode code, int line, absl::string_view what) {
  return absl::Status(code, absl::StrCat("line ", line, ": ", what));
}

absl::Status Unknown(int line, absl::string_view kind, absl::string_view name) {
  return AtLine(absl::StatusCode::kUnimplemented, line,
                absl::StrCat("the template uses the ", kind, " '", name,
                             "', which this converter does not know"));
}

absl::Status Unsound(int line, absl::string_view what) {
  return AtLine(absl::StatusCode::kInvalidArgument, line, what);
}

// ---- Tokens -----------------------------------------------------------------

struct Token {
  enum class Kind { kName, kInteger, kFloat, kString, kOperator, kEnd };
  Kind kind = Kind::kEnd;
  std::string text;
  int line = 1;
};

// A stretch of the template: text, {{ ... }} or {% ... %}.
struct Segment {
  enum class Kind { kText, kOutput, kStatement };
  Kind kind = Kind::kText;
  std::string text;           // kText
  std::vector<Token> tokens;  // Otherwise; the last is kEnd.
  int line = 1;
};

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Segment>> Run() {
    while (pos_ < source_.size()) {
      DELTAEDGE_RETURN_IF_ERROR(ReadText());
      if (pos_ == source_.size()) break;
      DELTAEDGE_RETURN_IF_ERROR(ReadTag());
    }
    return std::move(segments_);
  }

 private:
  absl::string_view Rest() const { return source_.substr(pos_); }

  void Skip(size_t bytes) {
    line_ += static_cast<int>(std::count(source_.begin() + pos_,
                                         source_.begin() + pos_ + bytes, '\n'));
    pos_ += bytes;
  }

  absl::Status ReadText() {
    size_t end = pos_;
    while (end < source_.size() &&
           !(source_[end] == '{' && end + 1 < source_.size() &&
             absl::StrContains("{%#", source_.substr(end + 1, 1)))) {
      ++end;
    }
    absl::string_view text = source_.substr(pos_, end - pos_);
    if (end < source_.size()) {
      const char control = end + 2 < source_.size() ? source_[end + 2] : ' ';
      if (control == '-') {
        text = absl::StripTrailingAsciiWhitespace(text);
      } else if (control != '+' && source_[end + 1] != '{') {
        text = WithoutIndent(text);
      }
    }
    if (!text.empty()) {
      segments_.push_back({Segment::Kind::kText, std::string(text), {}, line_});
    }
    Skip(end - pos_);
    return absl::OkStatus();
  }

  // lstrip_blocks: blanks between the beginning of a line and a block vanish.
  absl::string_view WithoutIndent(absl::string_view text) const {
    size_t begin = text.size();
    while (begin > 0 && (text[begin - 1] == ' ' || text[begin - 1] == '\t')) {
      --begin;
    }
    const size_t before = pos_ + begin;
    return before == 0 || source_[before - 1] == '\n' ? text.substr(0, begin)
                                                      : text;
  }

  absl::Status ReadTag() {
    const int line = line_;
    const char kind = source_[pos_ + 1];
    const char close = kind == '{' ? '}' : kind;
    Skip(2);
    if (!Rest().empty() && (Rest()[0] == '-' || Rest()[0] == '+')) Skip(1);

    Segment segment;
    segment.kind =
        kind == '{' ? Segment::Kind::kOutput : Segment::Kind::kStatement;
    segment.line = line;
    int open = 0;  // Brackets.
    while (true) {
      if (kind != '#') {
        Skip(Rest().size() - absl::StripLeadingAsciiWhitespace(Rest()).size());
      }
      if (Rest().empty()) return Unsound(line, "a tag is not closed");
      const bool trimmed = Rest()[0] == '-' || Rest()[0] == '+';
      const size_t at = trimmed ? 1 : 0;
      if (open == 0 && Rest().size() >= at + 2 && Rest()[at] == close &&
          Rest()[at + 1] == '}') {
        const char control = trimmed ? Rest()[0] : ' ';
        Skip(at + 2);
        if (control == '-') {
          Skip(Rest().size() -
               absl::StripLeadingAsciiWhitespace(Rest()).size());
        } else if (control != '+' && kind != '{' &&
                   absl::StartsWith(Rest(), "\n")) {
          Skip(1);  // trim_blocks
        }
        break;
      }
      if (kind == '#') {
        Skip(1);
        continue;
      }
      DELTAEDGE_RETURN_IF_ERROR(ReadToken(&segment.tokens));
      const Token& token = segment.tokens.back();
      if (token.kind == Token::Kind::kOperator) {
        if (absl::StrContains("([{", token.text)) ++open;
        if (absl::StrContains(")]}", token.text)) --open;
      }
    }
    if (kind == '#') return absl::OkStatus();
    segment.tokens.push_back({Token::Kind::kEnd, "end of the tag", line_});
    segments_.push_back(std::move(segment));
    return absl::OkStatus();
  }

  absl::Status ReadToken(std::vector<Token>* tokens) {
    const char c = Rest()[0];
    if (c == '\'' || c == '"') return ReadString(tokens);
    Token token{Token::Kind::kOperator, "", line_};
    size_t end = 0;
    if (absl::ascii_isalpha(c) || c == '_') {
      while (end < Rest().size() &&
             (absl::ascii_isalnum(Rest()[end]) || Rest()[end] == '_')) {
        ++end;
      }
      token.kind = Token::Kind::kName;
    } else if (absl::ascii_isdigit(c)) {
      while (end < Rest().size() && absl::ascii_isdigit(Rest()[end])) ++end;
      token.kind = Token::Kind::kInteger;
      if (end + 1 < Rest().size() && Rest()[end] == '.' &&
          absl::ascii_isdigit(Rest()[end + 1])) {
        ++end;
        while (end < Rest().size() && absl::ascii_isdigit(Rest()[end])) ++end;
        token.kind = Token::Kind::kFloat;
      }
    } else {
      for (absl::string_view two : {"==", "!=", "<=", ">=", "//", "**"}) {
        if (absl::StartsWith(Rest(), two)) end = 2;
      }
      if (end == 0 && absl::StrContains("+-*/%~<>=()[]{}.,:|", c)) end = 1;
      if (end == 0)
        return Unsound(
            line_, absl::StrCat("a stray '",
                                Rest().substr(0, NextUtf8(Rest()).bytes), "'"));
    }
    token.text = std::string(Rest().substr(0, end));
    Skip(end);
    tokens->push_back(std::move(token));
    return absl::OkStatus();
  }

  absl::Status ReadString(std::vector<Token>* tokens) {
    const char quote = Rest()[0];
    Token token{Token::Kind::kString, "", line_};
    Skip(1);
    while (!Rest().empty() && Rest()[0] != quote) {
      char c = Rest()[0];
      if (c == '\\' && Rest().size() > 1) {
        Skip(1);
        switch (Rest()[0]) {
          case 'n':
            c = '\n';
            break;
          case 't':
            c = '\t';
            break;
          case 'r':
            c = '\r';
            break;
          case '\\':
          case '\'':
          case '"':
            c = Rest()[0];
            break;
          default:
            return Unknown(line_, "escape",
                           absl::StrCat("\\", Rest().substr(0, 1)));
        }
      }
      token.text += c;
      Skip(1);
    }
    if (Rest().empty()) return Unsound(token.line, "a string is not closed");
    Skip(1);
    tokens->push_back(std::move(token));
    return absl::OkStatus();
  }

  const absl::string_view source_;
  size_t pos_ = 0;
  int line_ = 1;
  std::vector<Segment> segments_;
};

// ---- Values -----------------------------------------------------------------

struct Macro;

// A Python value, as far as templates can tell. Lists and dicts are shared like
// Python's; only a namespace can change.
struct Value {
  enum class Kind {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kDict,
    kNamespace
  };
  using Items = std::vector<std::pair<std::string, Value>>;

  Kind kind = Kind::kUndefined;
  int64_t number = 0;  // kBool, kInt
  double real = 0;     // kFloat
  std::string text;    // kString; of kUndefined, what is undefined.
  std::shared_ptr<std::vector<Value>> list;
  std::shared_ptr<Items> items;  // kDict, kNamespace
  // Of lists and dicts: levels of them. A namespace never goes into another
  // value, which could make a circle.
  int nesting = 0;

  static Value None() { return Of(Kind::kNone); }
  static Value Bool(bool b) {
    Value v = Of(Kind::kBool);
    v.number = b;
    return v;
  }
  static Value Int(int64_t i) {
    Value v = Of(Kind::kInt);
    v.number = i;
    return v;
  }
  static Value String(std::string s) {
    Value v = Of(Kind::kString);
    v.text = std::move(s);
    return v;
  }
  static Value Undefined(absl::string_view what) {
    Value v;
    v.text = std::string(what);
    return v;
  }
  static Value List(std::vector<Value> values) {
    Value v = Of(Kind::kList);
    for (const Value& value : values) {
      v.nesting = std::max(v.nesting, value.nesting + 1);
    }
    v.list = std::make_shared<std::vector<Value>>(std::move(values));
    return v;
  }
  static Value Dict(Items items, Kind kind = Kind::kDict) {
    Value v = Of(kind);
    for (const auto& [key, value] : items) {
      v.nesting = std::max(v.nesting, value.nesting + 1);
    }
    if (kind == Kind::kNamespace) v.nesting = kMaxNesting;
    v.items = std::make_shared<Items>(std::move(items));
    return v;
  }
  static Value FromJson(const nlohmann::json& json);

  bool is(Kind k) const { return kind == k; }
  bool is_number() const {
    return is(Kind::kBool) || is(Kind::kInt) || is(Kind::kFloat);
  }
  bool has_items() const { return is(Kind::kDict) || is(Kind::kNamespace); }
  double as_real() const {
    return is(Kind::kFloat) ? real : static_cast<double>(number);
  }
  const Value* Find(absl::string_view key) const {
    for (const auto& [name, value] : *items) {
      if (name == key) return &value;
    }
    return nullptr;
  }

 private:
  static Value Of(Kind k) {
    Value v;
    v.kind = k;
    return v;
  }
};

Value Value::FromJson(const nlohmann::json& json) {
  if (json.is_boolean()) return Bool(json.get<bool>());
  if (json.is_number_integer()) return Int(json.get<int64_t>());
  if (json.is_string()) return String(json.get_ref<const std::string&>());
  if (json.is_array()) {
    std::vector<Value> values;
    for (const nlohmann::json& item : json) values.push_back(FromJson(item));
    return List(std::move(values));
  }
  if (json.is_object()) {
    Items items;
    for (auto it = json.begin(); it != json.end(); ++it) {
      items.emplace_back(it.key(), FromJson(*it));
    }
    return Dict(std::move(items));
  }
  if (json.is_number_float()) {
    Value v = Of(Kind::kFloat);
    v.real = json.get<double>();
    return v;
  }
  return None();
}

absl::string_view KindName(const Value& v) {
  switch (v.kind) {
    case Value::Kind::kUndefined:
      return "undefined";
    case Value::Kind::kNone:
      return "none";
    case Value::Kind::kBool:
      return "boolean";
    case Value::Kind::kInt:
      return "integer";
    case Value::Kind::kFloat:
      return "float";
    case Value::Kind::kString:
      return "string";
    case Value::Kind::kList:
      return "list";
    case Value::Kind::kDict:
      return "dict";
    case Value::Kind::kNamespace:
      return "namespace";
  }
  return "value";
}

bool Truth(const Value& v) {
  switch (v.kind) {
    case Value::Kind::kUndefined:
    case Value::Kind::kNone:
      return false;
    case Value::Kind::kBool:
    case Value::Kind::kInt:
      return v.number != 0;
    case Value::Kind::kFloat:
      return v.real != 0;
    case Value::Kind::kString:
      return !v.text.empty();
    case Value::Kind::kList:
      return !v.list->empty();
    case Value::Kind::kDict:
      return !v.items->empty();
    case Value::Kind::kNamespace:
      return true;
  }
  return false;
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Value::Kind::kString:
      return a.text == b.text;
    case Value::Kind::kList:
      return std::equal(a.list->begin(), a.list->end(), b.list->begin(),
                        b.list->end(), Equal);
    case Value::Kind::kDict:
      return a.items->size() == b.items->size() &&
             std::all_of(
                 a.items->begin(), a.items->end(), [&b](const auto& item) {
                   const Value* other = b.Find(item.first);
                   return other != nullptr && Equal(item.second, *other);
                 });
    case Value::Kind::kNamespace:
      return a.items == b.items;
    default:
      return true;
  }
}

// As json.dumps(value, ensure_ascii=False) of Python writes it.
bool WriteJson(const Value& v, std::string* out) {
  switch (v.kind) {
    case Value::Kind::kNone:
      *out += "null";
      return true;
    case Value::Kind::kBool:
      *out += v.number != 0 ? "true" : "false";
      return true;
    case Value::Kind::kInt:
      absl::StrAppend(out, v.number);
      return true;
    case Value::Kind::kFloat:
      *out += nlohmann::json(v.real).dump();
      return true;
    case Value::Kind::kString:
      *out += nlohmann::json(v.text).dump(
          -1, ' ', false, nlohmann::json::error_handler_t::replace);
      return true;
    case Value::Kind::kList:
      *out += '[';
      for (size_t i = 0; i < v.list->size(); ++i) {
        if (i > 0) *out += ", ";
        if (!WriteJson((*v.list)[i], out)) return false;
      }
      *out += ']';
      return true;
    case Value::Kind::kDict:
      *out += '{';
      for (size_t i = 0; i < v.items->size(); ++i) {
        if (i > 0) *out += ", ";
        if (!WriteJson(Value::String((*v.items)[i].first), out)) return false;
        *out += ": ";
        if (!WriteJson((*v.items)[i].second, out)) return false;
      }
      *out += '}';
      return true;
    default:
      return false;
  }
}

// ---- The tree ---------------------------------------------------------------

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  enum class Op {
    kLiteral,    // literal
    kName,       // name
    kList,       // args
    kDict,       // args: key, value, key, value ...
    kAttribute,  // args[0].name
    kItem,       // args[0][args[1]]
    kSlice,      // args[0][args[1]:args[2]:args[3]], null where left out
    kCall,       // name(args, named)
    kMethod,     // args[0].name(args 1 .., named)
    kFilter,     // args[0] | name(args 1 ..., named)
    kTest,       // args[0] is name
    kNot,        // not args[0]
    kNegate,     // -args[0]
    kBinary,     // args[0] name args[1]
    kCondition   // args[0] if args[1] else args[2], which may be null
  };
  Op op = Op::kLiteral;
  int line = 1;
  int depth = 1;
  std::string name;
  Value literal;
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

struct Statement {
  enum class Op {
    kText,    // text
    kOutput,  // expr
    kIf,      // branches: condition (null: else) and body
    kFor,     // targets in expr if filter: body; otherwise
    kSet,     // targets[0], or targets[0].attribute, = expr or body
    kGroup    // body
  };
  Op op = Op::kText;
  int line = 1;
  std::string text, attribute;
  std::vector<std::string> targets;
  ExprPtr expr, filter;
  std::vector<std::pair<ExprPtr, Block>> branches;
  Block body, otherwise;
};

struct Macro {
  std::vector<std::pair<std::string, ExprPtr>> parameters;  // With defaults.
  Block body;
};

const absl::flat_hash_set<absl::string_view>& KnownFilters() {
  static const auto* const names = new absl::flat_hash_set<absl::string_view>{
      "count",  "d",      "default", "first", "items",   "join",
      "last",   "length", "list",    "lower", "replace", "safe",
      "string", "tojson", "trim",    "upper"};
  return *names;
}

const absl::flat_hash_set<absl::string_view>& KnownTests() {
  static const auto* const names = new absl::flat_hash_set<absl::string_view>{
      "boolean",  "defined", "false",    "float",  "integer",
      "iterable", "mapping", "none",     "number", "sequence",
      "string",   "true",    "undefined"};
  return *names;
}

const absl::flat_hash_set<absl::string_view>& KnownMethods() {
  static const auto* const names = new absl::flat_hash_set<absl::string_view>{
      "endswith", "lower", "lstrip", "replace", "rstrip", "split", "startswith",
      "strip",    "upper", "get",    "items",   "keys",   "values"};
  return *names;
}

const absl::flat_hash_set<absl::string_view>& KnownFunctions() {
  static const auto* const names = new absl::flat_hash_set<absl::string_view>{
      "namespace", "raise_exception", "range"};
  return *names;
}

// ---- Parser -----------------------------------------------------------------

class Parser {
 public:
  Parser(std::vector<Segment> segments, std::map<std::string, Macro>* macros)
      : segments_(std::move(segments)), macros_(macros) {}

  absl::StatusOr<Block> Run() {
    // Macros may be called before they are defined.
    for (const Segment& segment : segments_) {
      if (segment.kind == Segment::Kind::kStatement &&
          segment.tokens[0].text == "macro" && segment.tokens.size() > 1) {
        (*macros_)[segment.tokens[1].text];
      }
    }
    Block block = ParseBlock({});
    if (!status_.ok()) return status_;
    return block;
  }

 private:
  // ---- Statements ----

  void Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  bool ok() const { return status_.ok(); }

  // Up to a statement that begins with one of `ends`, which is then current.
  Block ParseBlock(const std::vector<absl::string_view>& ends) {
    Block block;
    if (++depth_ > kMaxDepth) Fail(Unsound(line_, "nested too deeply"));
    const int begin_line = line_;
    while (ok() && next_segment_ < segments_.size()) {
      const Segment& segment = segments_[next_segment_++];
      line_ = segment.line;
      if (segment.kind == Segment::Kind::kText) {
        auto text = NewStatement(Statement::Op::kText);
        text->text = segment.text;
        block.push_back(std::move(text));
        continue;
      }
      tokens_ = &segment.tokens;
      next_ = 0;
      if (segment.kind == Segment::Kind::kOutput) {
        auto output = NewStatement(Statement::Op::kOutput);
        output->expr = ParseExpr();
        ExpectEnd();
        block.push_back(std::move(output));
        continue;
      }
      if (std::find(ends.begin(), ends.end(), Peek().text) != ends.end()) {
        --depth_;
        return block;
      }
      ParseStatement(&block);
    }
    if (ok() && !ends.empty()) {
      Fail(Unsound(begin_line,
                   absl::StrCat("no {% ", ends.back(), " %} for this block")));
    }
    --depth_;
    return block;
  }

  std::unique_ptr<Statement> NewStatement(Statement::Op op) {
    auto statement = std::make_unique<Statement>();
    statement->op = op;
    statement->line = line_;
    return statement;
  }

  void ParseStatement(Block* block) {
    const Token keyword = Take();
    if (keyword.text == "if") {
      ParseIf(block);
    } else if (keyword.text == "for") {
      ParseFor(block);
    } else if (keyword.text == "set") {
      ParseSet(block);
    } else if (keyword.text == "macro") {
      ParseMacro();
    } else if (keyword.text == "generation") {
      auto group = NewStatement(Statement::Op::kGroup);
      ExpectEnd();
      group->body = ParseBlock({"endgeneration"});
      TakeEnd();
      block->push_back(std::move(group));
    } else {
      Fail(Unknown(keyword.line, "statement", keyword.text));
    }
  }

  void ParseIf(Block* block) {
    auto statement = NewStatement(Statement::Op::kIf);
    ExprPtr condition = ParseExpr();
    ExpectEnd();
    while (ok()) {
      const bool last = condition == nullptr;
      Block body =
          last ? ParseBlock({"endif"}) : ParseBlock({"elif", "else", "endif"});
      if (!ok()) return;
      statement->branches.emplace_back(std::move(condition), std::move(body));
      const std::string keyword = Take().text;
      condition = keyword == "elif" ? ParseExpr() : nullptr;
      ExpectEnd();
      if (keyword == "endif") break;
    }
    block->push_back(std::move(statement));
  }

  void ParseFor(Block* block) {
    auto statement = NewStatement(Statement::Op::kFor);
    do {
      statement->targets.push_back(TakeName());
    } while (ok() && TakeIf(","));
    if (statement->targets.size() > 2) {
      Fail(Unknown(line_, "form", "for with more than two targets"));
    }
    Expect("in");
    statement->expr = ParseOr();
    if (TakeIf("if")) statement->filter = ParseExpr();
    if (Peek().text == "recursive") {
      Fail(Unknown(line_, "form", "for ... recursive"));
    }
    ExpectEnd();
    statement->body = ParseBlock({"else", "endfor"});
    if (!ok()) return;
    if (TakeIf("else")) {
      ExpectEnd();
      statement->otherwise = ParseBlock({"endfor"});
    }
    TakeEnd();
    block->push_back(std::move(statement));
  }

  void ParseSet(Block* block) {
    auto statement = NewStatement(Statement::Op::kSet);
    statement->targets.push_back(TakeName());
    if (TakeIf(".")) statement->attribute = TakeName();
    if (Peek().text == ",") {
      Fail(Unknown(line_, "form", "set of several targets"));
    }
    if (TakeIf("=")) {
      statement->expr = ParseExpr();
      ExpectEnd();
    } else {
      ExpectEnd();
      statement->body = ParseBlock({"endset"});
      TakeEnd();
    }
    block->push_back(std::move(statement));
  }

  void ParseMacro() {
    const std::string name = TakeName();
    Macro macro;
    Expect("(");
    while (ok() && !TakeIf(")")) {
      std::string parameter = TakeName();
      ExprPtr value = TakeIf("=") ? ParseExpr() : nullptr;
      macro.parameters.emplace_back(std::move(parameter), std::move(value));
      if (!TakeIf(",") && Peek().text != ")") Expect(")");
    }
    ExpectEnd();
    if (macro_depth_ > 0) {
      Fail(Unknown(line_, "form", "macro inside a macro"));
    }
    ++macro_depth_;
    macro.body = ParseBlock({"endmacro"});
    --macro_depth_;
    TakeEnd();
    if (ok()) (*macros_)[name] = std::move(macro);
  }

  // ---- Tokens ----

  const Token& Peek(size_t ahead = 0) const {
    const size_t i = std::min(next_ + ahead, tokens_->size() - 1);
    return (*tokens_)[i];
  }
  Token Take() {
    const Token token = Peek();
    line_ = token.line;
    if (next_ + 1 < tokens_->size()) ++next_;
    return token;
  }
  // Strings never match: 'in' is a string, in an operator.
  bool IsSymbol(const Token& token, absl::string_view text) const {
    return (token.kind == Token::Kind::kName ||
            token.kind == Token::Kind::kOperator) &&
           token.text == text;
  }
  bool TakeIf(absl::string_view text) {
    if (!ok() || !IsSymbol(Peek(), text)) return false;
    Take();
    return true;
  }
  void Expect(absl::string_view text) {
    if (ok() && !TakeIf(text)) {
      Fail(Unsound(Peek().line, absl::StrCat("'", text, "' expected before '",
                                             Peek().text, "'")));
    }
  }
  void ExpectEnd() {
    if (ok() && Peek().kind != Token::Kind::kEnd) {
      Fail(Unsound(Peek().line,
                   absl::StrCat("'", Peek().text, "' is not expected here")));
    }
  }
  // After ParseBlock, which stands at the end's keyword.
  void TakeEnd() {
    if (!ok()) return;
    Take();
    ExpectEnd();
  }
  std::string TakeName() {
    if (ok() && Peek().kind != Token::Kind::kName) {
      Fail(Unsound(Peek().line,
                   absl::StrCat("a name expected before '", Peek().text, "'")));
    }
    return Take().text;
  }

  // ---- Expressions, from the loosest to the tightest ----

  ExprPtr New(Expr::Op op, std::string name = {}) {
    auto expr = std::make_unique<Expr>();
    expr->op = op;
    expr->line = line_;
    expr->name = std::move(name);
    return expr;
  }
  ExprPtr New(Expr::Op op, std::string name, ExprPtr a, ExprPtr b = nullptr) {
    ExprPtr expr = New(op, std::move(name));
    Adopt(expr.get(), std::move(a));
    if (b != nullptr) Adopt(expr.get(), std::move(b));
    return expr;
  }
  void Adopt(Expr* parent, ExprPtr child) {
    Deepen(parent, child.get());
    parent->args.push_back(std::move(child));
  }
  // Evaluating and deleting a tree recurse.
  void Deepen(Expr* parent, const Expr* child) {
    if (child == nullptr) return;
    parent->depth = std::max(parent->depth, child->depth + 1);
    if (parent->depth > kMaxTreeDepth) {
      Fail(Unsound(line_, "an expression is too long"));
    }
  }

  ExprPtr ParseExpr() {
    if (++depth_ > kMaxDepth) Fail(Unsound(line_, "nested too deeply"));
    ExprPtr value = ok() ? ParseOr() : New(Expr::Op::kLiteral);
    while (TakeIf("if")) {
      ExprPtr condition = ParseOr();
      ExprPtr expr =
          New(Expr::Op::kCondition, "", std::move(value), std::move(condition));
      Adopt(expr.get(), TakeIf("else") ? ParseExpr() : nullptr);
      value = std::move(expr);
    }
    --depth_;
    return value;
  }

  ExprPtr ParseOr() {
    ExprPtr left = ParseAnd();
    while (TakeIf("or")) {
      left = New(Expr::Op::kBinary, "or", std::move(left), ParseAnd());
    }
    return left;
  }

  ExprPtr ParseAnd() {
    ExprPtr left = ParseNot();
    while (TakeIf("and")) {
      left = New(Expr::Op::kBinary, "and", std::move(left), ParseNot());
    }
    return left;
  }

  ExprPtr ParseNot() {
    if (!TakeIf("not")) return ParseComparison();
    if (++depth_ > kMaxDepth) Fail(Unsound(line_, "nested too deeply"));
    ExprPtr expr =
        New(Expr::Op::kNot, "", ok() ? ParseNot() : New(Expr::Op::kLiteral));
    --depth_;
    return expr;
  }

  ExprPtr ParseComparison() {
    ExprPtr left = ParseSum();
    bool chained = false;
    while (ok()) {
      std::string op;
      for (absl::string_view symbol :
           {"==", "!=", "<=", ">=", "<", ">", "in"}) {
        if (op.empty() && TakeIf(symbol)) op = std::string(symbol);
      }
      if (op.empty() && IsSymbol(Peek(), "not") && IsSymbol(Peek(1), "in")) {
        Take();
        Take();
        op = "not in";
      }
      if (op.empty()) break;
      if (chained) Fail(Unknown(line_, "form", "a chain of comparisons"));
      chained = true;
      left = New(Expr::Op::kBinary, op, std::move(left), ParseSum());
    }
    return left;
  }

  ExprPtr ParseSum() {
    ExprPtr left = ParseConcatenation();
    while (ok() && (IsSymbol(Peek(), "+") || IsSymbol(Peek(), "-"))) {
      std::string op = Take().text;
      left = New(Expr::Op::kBinary, std::move(op), std::move(left),
                 ParseConcatenation());
    }
    return left;
  }

  ExprPtr ParseConcatenation() {
    ExprPtr left = ParseProduct();
    while (TakeIf("~")) {
      left = New(Expr::Op::kBinary, "~", std::move(left), ParseProduct());
    }
    return left;
  }

  ExprPtr ParseProduct() {
    ExprPtr left = ParseUnary();
    while (ok()) {
      if (IsSymbol(Peek(), "/") || IsSymbol(Peek(), "**")) {
        Fail(Unknown(line_, "operator", Peek().text));
      }
      if (!IsSymbol(Peek(), "*") && !IsSymbol(Peek(), "//") &&
          !IsSymbol(Peek(), "%")) {
        break;
      }
      std::string op = Take().text;
      left =
          New(Expr::Op::kBinary, std::move(op), std::move(left), ParseUnary());
    }
    return left;
  }

  ExprPtr ParseUnary(bool with_filters = true) {
    ExprPtr expr;
    if (TakeIf("-")) {
      if (++depth_ > kMaxDepth) Fail(Unsound(line_, "nested too deeply"));
      expr = New(Expr::Op::kNegate, "",
                 ok() ? ParseUnary(false) : New(Expr::Op::kLiteral));
      --depth_;
    } else {
      expr = ParsePostfix(ParsePrimary());
    }
    return with_filters ? ParseFilters(std::move(expr)) : std::move(expr);
  }

  ExprPtr Literal(Value value) {
    ExprPtr expr = New(Expr::Op::kLiteral);
    expr->literal = std::move(value);
    return expr;
  }

  ExprPtr ParsePrimary() {
    const Token token = Take();
    switch (token.kind) {
      case Token::Kind::kString: {
        std::string text = token.text;
        while (Peek().kind == Token::Kind::kString) text += Take().text;
        return Literal(Value::String(std::move(text)));
      }
      case Token::Kind::kInteger: {
        int64_t value = 0;
        if (!absl::SimpleAtoi(token.text, &value)) {
          Fail(Unsound(token.line, absl::StrCat(token.text, " is too large")));
        }
        return Literal(Value::Int(value));
      }
      case Token::Kind::kFloat: {
        double value = 0;
        if (!absl::SimpleAtod(token.text, &value)) {
          Fail(Unsound(token.line, absl::StrCat(token.text, " is no number")));
        }
        return Literal(Value::FromJson(nlohmann::json(value)));
      }
      case Token::Kind::kName:
        return ParseName(token);
      case Token::Kind::kOperator:
        if (token.text == "(") return ParseParenthesis();
        if (token.text == "[") {
          ExprPtr list = New(Expr::Op::kList);
          while (ok() && !TakeIf("]")) {
            Adopt(list.get(), ParseExpr());
            if (!TakeIf(",") && !IsSymbol(Peek(), "]")) Expect("]");
          }
          return list;
        }
        if (token.text == "{") {
          ExprPtr dict = New(Expr::Op::kDict);
          while (ok() && !TakeIf("}")) {
            Adopt(dict.get(), ParseExpr());
            Expect(":");
            Adopt(dict.get(), ParseExpr());
            if (!TakeIf(",") && !IsSymbol(Peek(), "}")) Expect("}");
          }
          return dict;
        }
        break;
      case Token::Kind::kEnd:
        break;
    }
    Fail(Unsound(token.line,
                 absl::StrCat("'", token.text, "' is not expected here")));
    return New(Expr::Op::kLiteral);
  }

  ExprPtr ParseName(const Token& token) {
    if (token.text == "true" || token.text == "True") {
      return Literal(Value::Bool(true));
    }
    if (token.text == "false" || token.text == "False") {
      return Literal(Value::Bool(false));
    }
    if (token.text == "none" || token.text == "None") {
      return Literal(Value::None());
    }
    if (IsSymbol(Peek(), "(")) {
      if (!KnownFunctions().contains(token.text) &&
          macros_->count(token.text) == 0) {
        Fail(Unknown(token.line, "function", token.text));
      }
      ExprPtr call = New(Expr::Op::kCall, token.text);
      ParseArguments(call.get());
      return call;
    }
    return New(Expr::Op::kName, token.text);
  }

  ExprPtr ParseParenthesis() {
    ExprPtr first = ParseExpr();
    if (!TakeIf(",")) {
      Expect(")");
      return first;
    }
    ExprPtr list = New(Expr::Op::kList, "", std::move(first));
    while (ok() && !TakeIf(")")) {
      Adopt(list.get(), ParseExpr());
      if (!TakeIf(",") && !IsSymbol(Peek(), ")")) Expect(")");
    }
    return list;
  }

  void ParseArguments(Expr* call) {
    Expect("(");
    while (ok() && !TakeIf(")")) {
      if (Peek().kind == Token::Kind::kName && IsSymbol(Peek(1), "=")) {
        std::string name = TakeName();
        Take();
        call->named.emplace_back(std::move(name), ParseExpr());
        Deepen(call, call->named.back().second.get());
      } else {
        Adopt(call, ParseExpr());
      }
      if (!TakeIf(",") && !IsSymbol(Peek(), ")")) Expect(")");
    }
  }

  ExprPtr ParsePostfix(ExprPtr expr) {
    while (ok()) {
      if (TakeIf(".")) {
        const Token name = Peek();
        const std::string attribute = TakeName();
        if (!IsSymbol(Peek(), "(")) {
          expr = New(Expr::Op::kAttribute, attribute, std::move(expr));
          continue;
        }
        if (!KnownMethods().contains(attribute)) {
          Fail(Unknown(name.line, "method", attribute));
        }
        expr = New(Expr::Op::kMethod, attribute, std::move(expr));
        ParseArguments(expr.get());
      } else if (TakeIf("[")) {
        expr = ParseSubscript(std::move(expr));
      } else if (IsSymbol(Peek(), "(")) {
        Fail(Unknown(line_, "form", "a call of a value"));
      } else {
        break;
      }
    }
    return expr;
  }

  ExprPtr ParseSubscript(ExprPtr base) {
    ExprPtr parts[3];
    int colons = 0;
    while (ok() && !TakeIf("]")) {
      if (TakeIf(":")) {
        if (++colons > 2) Expect("]");
        continue;
      }
      if (parts[colons] != nullptr) Expect("]");
      parts[colons] = ParseExpr();
    }
    if (colons == 0) {
      if (ok() && parts[0] == nullptr) Expect("an index");
      return New(Expr::Op::kItem, "", std::move(base), std::move(parts[0]));
    }
    ExprPtr slice = New(Expr::Op::kSlice, "", std::move(base));
    for (ExprPtr& part : parts) Adopt(slice.get(), std::move(part));
    return slice;
  }

  ExprPtr ParseFilters(ExprPtr expr) {
    while (ok()) {
      if (TakeIf("|")) {
        const std::string name = TakeName();
        if (ok() && !KnownFilters().contains(name)) {
          Fail(Unknown(line_, "filter", name));
        }
        expr = New(Expr::Op::kFilter, name, std::move(expr));
        if (IsSymbol(Peek(), "(")) ParseArguments(expr.get());
      } else if (TakeIf("is")) {
        const bool negated = TakeIf("not");
        const std::string name = TakeName();
        if (ok() && !KnownTests().contains(name)) {
          Fail(Unknown(line_, "test", name));
        }
        expr = New(Expr::Op::kTest, name, std::move(expr));
        if (negated) expr = New(Expr::Op::kNot, "", std::move(expr));
      } else {
        break;
      }
    }
    return expr;
  }

  std::vector<Segment> segments_;
  std::map<std::string, Macro>* const macros_;
  size_t next_segment_ = 0;
  const std::vector<Token>* tokens_ = nullptr;
  size_t next_ = 0;
  int line_ = 1;
  int depth_ = 0, macro_depth_ = 0;
  absl::Status status_;
};

// ---- Interpreter ------------------------------------------------------------

std::vector<std::string> Characters(absl::string_view text) {
  std::vector<std::string> characters;
  while (!text.empty()) {
    const size_t bytes = NextUtf8(text).bytes;
    characters.emplace_back(text.substr(0, bytes));
    text.remove_prefix(bytes);
  }
  return characters;
}

// str.strip(chars) and its one-sided kin. No `chars`: white space.
std::string Strip(absl::string_view text, const std::string* chars, bool left,
                  bool right) {
  if (chars == nullptr) {
    const absl::string_view stripped = StripUnicodeSpace(text);
    if (stripped.empty()) return "";
    const size_t begin = stripped.data() - text.data();
    const size_t end = begin + stripped.size();
    return std::string(text.substr(
        left ? begin : 0, (right ? end : text.size()) - (left ? begin : 0)));
  }
  const std::vector<std::string> all = Characters(text);
  const std::vector<std::string> set = Characters(*chars);
  const auto in_set = [&set](const std::string& c) {
    return std::find(set.begin(), set.end(), c) != set.end();
  };
  size_t begin = 0, end = all.size();
  while (left && begin < end && in_set(all[begin])) ++begin;
  while (right && end > begin && in_set(all[end - 1])) --end;
  return absl::StrJoin(all.begin() + begin, all.begin() + end, "");
}

class Interpreter {
 public:
  Interpreter(const std::map<std::string, Macro>& macros,
              const nlohmann::json& variables)
      : macros_(macros) {
    scopes_.emplace_back();
    for (auto it = variables.begin(); it != variables.end(); ++it) {
      scopes_[0][it.key()] = Value::FromJson(*it);
    }
  }

  absl::StatusOr<std::string> Run(const Block& block) {
    std::string out;
    Execute(block, &out);
    if (!status_.ok()) return status_;
    return out;
  }

 private:
  using Scope = std::map<std::string, Value>;
  using Arguments = std::vector<Value>;

  bool ok() const { return status_.ok(); }

  Value Fail(int line, absl::string_view what) {
    if (ok()) status_ = Unsound(line, what);
    return Value();
  }

  bool Step(int line) {
    if (ok() && ++steps_ > kMaxSteps) {
      status_ = AtLine(absl::StatusCode::kResourceExhausted, line,
                       "the template takes too many steps");
    }
    return ok();
  }

  // Work on `items` things counts as steps, too.
  void Charge(size_t items) { steps_ += static_cast<int>(items / 16); }

  bool CheckLength(int line, size_t bytes) {
    if (ok() && bytes > kMaxTextBytes) {
      status_ = AtLine(absl::StatusCode::kResourceExhausted, line,
                       "the template makes too long a text");
    }
    return ok();
  }

  Value Text(int line, std::string text) {
    Charge(text.size());
    return CheckLength(line, text.size()) ? Value::String(std::move(text))
                                          : Value();
  }

  Value Structure(int line, Value value) {
    if (value.nesting > kMaxNesting) {
      return Fail(line, "lists and dicts are nested too deeply");
    }
    return value;
  }

  // ---- Statements ----

  void Execute(const Block& block, std::string* out) {
    for (const auto& statement : block) {
      if (!Step(statement->line)) return;
      Execute(*statement, out);
    }
  }

  void Execute(const Statement& s, std::string* out) {
    switch (s.op) {
      case Statement::Op::kText:
        *out += s.text;
        break;
      case Statement::Op::kOutput:
        *out += Printed(s.line, Evaluate(*s.expr));
        break;
      case Statement::Op::kIf:
        for (const auto& [condition, body] : s.branches) {
          if (condition == nullptr || Truth(Evaluate(*condition))) {
            Execute(body, out);
            break;
          }
          if (!ok()) break;
        }
        break;
      case Statement::Op::kFor:
        ExecuteFor(s, out);
        break;
      case Statement::Op::kSet:
        ExecuteSet(s);
        break;
      case Statement::Op::kGroup:
        Execute(s.body, out);
        break;
    }
    CheckLength(s.line, out->size());
  }

  void ExecuteSet(const Statement& s) {
    Value value;
    if (s.expr != nullptr) {
      value = Evaluate(*s.expr);
    } else {
      std::string text;
      Execute(s.body, &text);
      value = Text(s.line, std::move(text));
    }
    if (!ok()) return;
    if (s.attribute.empty()) {
      scopes_.back()[s.targets[0]] = std::move(value);
      return;
    }
    if (value.nesting >= kMaxNesting) {
      Fail(s.line, "cannot keep this in a namespace");
      return;
    }
    const Value target = Lookup(s.targets[0]);
    if (!target.is(Value::Kind::kNamespace)) {
      Fail(s.line, absl::StrCat("'", s.targets[0], "' is no namespace"));
      return;
    }
    for (auto& [name, old] : *target.items) {
      if (name == s.attribute) {
        old = std::move(value);
        return;
      }
    }
    target.items->emplace_back(s.attribute, std::move(value));
  }

  // False: `value` does not come in as many parts as there are targets.
  bool Bind(const Statement& s, const Value& value) {
    if (s.targets.size() == 1) {
      scopes_.back()[s.targets[0]] = value;
      return true;
    }
    if (!value.is(Value::Kind::kList) ||
        value.list->size() != s.targets.size()) {
      Fail(s.line, absl::StrCat("cannot take a ", KindName(value), " apart"));
      return false;
    }
    for (size_t i = 0; i < s.targets.size(); ++i) {
      scopes_.back()[s.targets[i]] = (*value.list)[i];
    }
    return true;
  }

  void ExecuteFor(const Statement& s, std::string* out) {
    std::vector<Value> values = Iterate(s.line, Evaluate(*s.expr));
    if (!ok()) return;
    scopes_.emplace_back();
    if (s.filter != nullptr) {
      std::vector<Value> kept;
      for (const Value& value : values) {
        if (!Step(s.line) || !Bind(s, value)) return;
        if (Truth(Evaluate(*s.filter))) kept.push_back(value);
        if (!ok()) return;
      }
      values = std::move(kept);
    }
    const int64_t n = static_cast<int64_t>(values.size());
    for (int64_t i = 0; i < n; ++i) {
      if (!Step(s.line)) return;
      scopes_.back().clear();
      if (!Bind(s, values[i])) return;
      Value::Items loop = {
          {"index", Value::Int(i + 1)},    {"index0", Value::Int(i)},
          {"revindex", Value::Int(n - i)}, {"revindex0", Value::Int(n - i - 1)},
          {"first", Value::Bool(i == 0)},  {"last", Value::Bool(i == n - 1)},
          {"length", Value::Int(n)}};
      if (i > 0) loop.emplace_back("previtem", values[i - 1]);
      if (i < n - 1) loop.emplace_back("nextitem", values[i + 1]);
      scopes_.back()["loop"] = Value::Dict(std::move(loop));
      Execute(s.body, out);
    }
    scopes_.pop_back();
    if (n == 0) Execute(s.otherwise, out);
  }

  // ---- Expressions ----

  Value Lookup(const std::string& name) const {
    for (size_t i = scopes_.size(); i-- > hidden_below_;) {
      const auto found = scopes_[i].find(name);
      if (found != scopes_[i].end()) return found->second;
    }
    const auto found = scopes_[0].find(name);
    return found == scopes_[0].end() ? Value::Undefined(name) : found->second;
  }

  // What str() gives.
  std::string Printed(int line, const Value& v) {
    switch (v.kind) {
      case Value::Kind::kUndefined:
        return "";
      case Value::Kind::kNone:
        return "None";
      case Value::Kind::kBool:
        return v.number != 0 ? "True" : "False";
      case Value::Kind::kInt:
        return absl::StrCat(v.number);
      case Value::Kind::kString:
        return v.text;
      default:
        Fail(line, absl::StrCat("cannot write a ", KindName(v)));
        return "";
    }
  }

  std::vector<Value> Iterate(int line, const Value& v) {
    std::vector<Value> values;
    switch (v.kind) {
      case Value::Kind::kUndefined:
        break;
      case Value::Kind::kList:
        Charge(v.list->size());
        return *v.list;
      case Value::Kind::kDict:
        for (const auto& [key, value] : *v.items) {
          values.push_back(Value::String(key));
        }
        break;
      case Value::Kind::kString:
        Charge(v.text.size());
        for (std::string& c : Characters(v.text)) {
          values.push_back(Value::String(std::move(c)));
        }
        break;
      default:
        Fail(line, absl::StrCat("a ", KindName(v), " has no items"));
    }
    return values;
  }

  Value Evaluate(const Expr& e) {
    if (!Step(e.line)) return Value();
    switch (e.op) {
      case Expr::Op::kLiteral:
        return e.literal;
      case Expr::Op::kName:
        return Lookup(e.name);
      case Expr::Op::kList:
        return Structure(e.line, Value::List(EvaluateAll(e, 0)));
      case Expr::Op::kDict: {
        Value::Items items;
        for (size_t i = 0; i + 1 < e.args.size(); i += 2) {
          const Value key = Evaluate(*e.args[i]);
          if (!key.is(Value::Kind::kString)) {
            return Fail(e.line, "a dict's key is not a string");
          }
          items.emplace_back(key.text, Evaluate(*e.args[i + 1]));
        }
        return Structure(e.line, Value::Dict(std::move(items)));
      }
      case Expr::Op::kAttribute:
        return Attribute(e, Evaluate(*e.args[0]));
      case Expr::Op::kItem:
        return Item(e, Evaluate(*e.args[0]), Evaluate(*e.args[1]));
      case Expr::Op::kSlice:
        return Slice(e);
      case Expr::Op::kCall:
        return Call(e);
      case Expr::Op::kMethod:
        return Method(e, Evaluate(*e.args[0]), EvaluateAll(e, 1));
      case Expr::Op::kFilter:
        return Filter(e, Evaluate(*e.args[0]), EvaluateAll(e, 1));
      case Expr::Op::kTest:
        return Value::Bool(Test(e.name, Evaluate(*e.args[0])));
      case Expr::Op::kNot:
        return Value::Bool(!Truth(Evaluate(*e.args[0])));
      case Expr::Op::kNegate: {
        const Value v = Evaluate(*e.args[0]);
        if (!v.is(Value::Kind::kInt)) {
          return Fail(e.line, absl::StrCat("no - for ", KindName(v)));
        }
        return Value::Int(-v.number);
      }
      case Expr::Op::kBinary:
        return Binary(e);
      case Expr::Op::kCondition:
        if (Truth(Evaluate(*e.args[1]))) return Evaluate(*e.args[0]);
        return e.args[2] == nullptr ? Value() : Evaluate(*e.args[2]);
    }
    return Value();
  }

  Arguments EvaluateAll(const Expr& e, size_t from) {
    Arguments values;
    for (size_t i = from; i < e.args.size(); ++i) {
      values.push_back(Evaluate(*e.args[i]));
    }
    return values;
  }

  Value Attribute(const Expr& e, const Value& base) {
    if (base.is(Value::Kind::kUndefined)) {
      return Fail(e.line, absl::StrCat("'", base.text,
                                       "' is undefined, so it "
                                       "has no '",
                                       e.name, "'"));
    }
    if (base.has_items()) {
      if (const Value* found = base.Find(e.name)) return *found;
    }
    return Value::Undefined(e.name);
  }

  Value Item(const Expr& e, const Value& base, const Value& index) {
    if (base.is(Value::Kind::kUndefined)) {
      return Fail(e.line, absl::StrCat("'", base.text,
                                       "' is undefined, so it has no "
                                       "items"));
    }
    if (base.has_items() && index.is(Value::Kind::kString)) {
      const Value* found = base.Find(index.text);
      return found == nullptr ? Value::Undefined(index.text) : *found;
    }
    if (index.is(Value::Kind::kInt) &&
        (base.is(Value::Kind::kList) || base.is(Value::Kind::kString))) {
      const std::vector<Value> values = Iterate(e.line, base);
      const int64_t n = static_cast<int64_t>(values.size());
      const int64_t i = index.number < 0 ? index.number + n : index.number;
      if (i >= 0 && i < n) return values[i];
    }
    return Value::Undefined("item");
  }

  Value Slice(const Expr& e) {
    const Value base = Evaluate(*e.args[0]);
    Value bounds[3];
    for (int i = 0; i < 3; ++i) {
      bounds[i] =
          e.args[i + 1] == nullptr ? Value::None() : Evaluate(*e.args[i + 1]);
      if (!bounds[i].is(Value::Kind::kNone) &&
          !bounds[i].is(Value::Kind::kInt)) {
        return Fail(e.line, "a slice's bound is not an integer");
      }
    }
    const bool is_text = base.is(Value::Kind::kString);
    if (!is_text && !base.is(Value::Kind::kList)) {
      return Fail(e.line, absl::StrCat("no slice of ", KindName(base)));
    }
    const std::vector<Value> values = Iterate(e.line, base);
    const int64_t n = static_cast<int64_t>(values.size());
    const int64_t step =
        bounds[2].is(Value::Kind::kNone) ? 1 : bounds[2].number;
    if (step != 1 && step != -1) {
      return Fail(e.line, "a slice's step is neither 1 nor -1");
    }
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    const auto bound = [&](const Value& v, int64_t otherwise) {
      if (v.is(Value::Kind::kNone)) return otherwise;
      const int64_t i = v.number < 0 ? v.number + n : v.number;
      return std::clamp(i, low, high);
    };
    const int64_t begin = bound(bounds[0], step > 0 ? low : high);
    const int64_t end = bound(bounds[1], step > 0 ? high : low);
    std::vector<Value> kept;
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
      kept.push_back(values[i]);
    }
    if (!is_text) return Value::List(std::move(kept));
    std::string text;
    for (const Value& v : kept) text += v.text;
    return Value::String(std::move(text));
  }

  Value Binary(const Expr& e) {
    const std::string& op = e.name;
    Value a = Evaluate(*e.args[0]);
    if (!ok()) return Value();
    if (op == "and") return Truth(a) ? Evaluate(*e.args[1]) : a;
    if (op == "or") return Truth(a) ? a : Evaluate(*e.args[1]);
    const Value b = Evaluate(*e.args[1]);
    if (!ok()) return Value();
    if (op == "==") return Value::Bool(Equal(a, b));
    if (op == "!=") return Value::Bool(!Equal(a, b));
    if (op == "in") return Value::Bool(Contains(e.line, b, a));
    if (op == "not in") return Value::Bool(!Contains(e.line, b, a));
    if (op == "~") {
      return Text(e.line, Printed(e.line, a) + Printed(e.line, b));
    }
    if (a.is(Value::Kind::kString) && b.is(Value::Kind::kString)) {
      if (op == "+") return Text(e.line, a.text + b.text);
      if (op == "<") return Value::Bool(a.text < b.text);
      if (op == ">") return Value::Bool(a.text > b.text);
      if (op == "<=") return Value::Bool(a.text <= b.text);
      if (op == ">=") return Value::Bool(a.text >= b.text);
    }
    if (a.is(Value::Kind::kList) && b.is(Value::Kind::kList) && op == "+" &&
        a.list->size() + b.list->size() <= kMaxRange) {
      Charge(a.list->size() + b.list->size());
      std::vector<Value> values = *a.list;
      values.insert(values.end(), b.list->begin(), b.list->end());
      return Value::List(std::move(values));
    }
    if (a.is_number() && b.is_number()) {
      const double x = a.as_real(), y = b.as_real();
      if (op == "<") return Value::Bool(x < y);
      if (op == ">") return Value::Bool(x > y);
      if (op == "<=") return Value::Bool(x <= y);
      if (op == ">=") return Value::Bool(x >= y);
      if (!a.is(Value::Kind::kFloat) && !b.is(Value::Kind::kFloat)) {
        return Integer(e, a.number, b.number);
      }
    }
    return Fail(e.line, absl::StrCat("no ", op, " for ", KindName(a), " and ",
                                     KindName(b)));
  }

  Value Integer(const Expr& e, int64_t a, int64_t b) {
    constexpr int64_t kLimit = int64_t{1} << 31;
    if (a <= -kLimit || a >= kLimit || b <= -kLimit || b >= kLimit) {
      return Fail(e.line, "an integer is too large");
    }
    if (e.name == "+") return Value::Int(a + b);
    if (e.name == "-") return Value::Int(a - b);
    if (e.name == "*") return Value::Int(a * b);
    if (b == 0) return Fail(e.line, "division by zero");
    // Python rounds towards minus infinity.
    const int64_t remainder = (a % b + b) % b;
    if (e.name == "%") return Value::Int(remainder);
    return Value::Int((a - remainder) / b);
  }

  bool Contains(int line, const Value& container, const Value& value) {
    switch (container.kind) {
      case Value::Kind::kString:
        if (value.is(Value::Kind::kString)) {
          return absl::StrContains(container.text, value.text);
        }
        break;
      case Value::Kind::kList:
        return std::any_of(
            container.list->begin(), container.list->end(),
            [&value](const Value& item) { return Equal(item, value); });
      case Value::Kind::kDict:
        return value.is(Value::Kind::kString) &&
               container.Find(value.text) != nullptr;
      case Value::Kind::kUndefined:
        return false;
      default:
        break;
    }
    Fail(line, absl::StrCat("no 'in' for ", KindName(value), " and ",
                            KindName(container)));
    return false;
  }

  static bool Test(const std::string& name, const Value& v) {
    using Kind = Value::Kind;
    if (name == "defined") return !v.is(Kind::kUndefined);
    if (name == "undefined") return v.is(Kind::kUndefined);
    if (name == "none") return v.is(Kind::kNone);
    if (name == "boolean") return v.is(Kind::kBool);
    if (name == "true") return v.is(Kind::kBool) && v.number != 0;
    if (name == "false") return v.is(Kind::kBool) && v.number == 0;
    if (name == "integer") return v.is(Kind::kInt);
    if (name == "float") return v.is(Kind::kFloat);
    if (name == "number") return v.is_number();
    if (name == "string") return v.is(Kind::kString);
    if (name == "mapping") return v.is(Kind::kDict);
    // iterable and sequence; an undefined value counts as an empty one.
    return v.is(Kind::kUndefined) || v.is(Kind::kString) || v.is(Kind::kList) ||
           v.is(Kind::kDict);
  }

  Value Call(const Expr& e) {
    Arguments args = EvaluateAll(e, 0);
    std::vector<std::pair<std::string, Value>> named;
    for (const auto& [name, expr] : e.named) {
      named.emplace_back(name, Evaluate(*expr));
    }
    if (!ok()) return Value();
    if (e.name == "raise_exception") {
      status_ = absl::AbortedError(args.empty() ? "raise_exception"
                                                : Printed(e.line, args[0]));
      return Value();
    }
    if (e.name == "namespace") {
      if (!args.empty()) return Fail(e.line, "namespace of a dict");
      for (const auto& [name, value] : named) {
        if (value.nesting >= kMaxNesting) {
          return Fail(e.line, "cannot keep this in a namespace");
        }
      }
      return Value::Dict(std::move(named), Value::Kind::kNamespace);
    }
    if (e.name == "range") return Range(e.line, args);
    return CallMacro(e, std::move(args), std::move(named));
  }

  Value Range(int line, const Arguments& args) {
    int64_t bounds[2] = {0, 0};
    if (args.empty() || args.size() > 2) {
      return Fail(line, "range takes one or two numbers");
    }
    for (size_t i = 0; i < args.size(); ++i) {
      if (!args[i].is(Value::Kind::kInt)) {
        return Fail(line, "range of something else than integers");
      }
      bounds[args.size() == 1 ? 1 : i] = args[i].number;
    }
    if (bounds[0] < -kMaxRange || bounds[1] > kMaxRange) {
      return Fail(line, "range is too long");
    }
    Charge(static_cast<size_t>(std::max<int64_t>(bounds[1] - bounds[0], 0)));
    std::vector<Value> values;
    for (int64_t i = bounds[0]; i < bounds[1]; ++i) {
      values.push_back(Value::Int(i));
    }
    return Value::List(std::move(values));
  }

  Value CallMacro(const Expr& e, Arguments args,
                  std::vector<std::pair<std::string, Value>> named) {
    const Macro& macro = macros_.at(e.name);
    if (args.size() > macro.parameters.size()) {
      return Fail(e.line, absl::StrCat("too many arguments for ", e.name));
    }
    if (++calls_ > kMaxDepth / 2) {
      --calls_;
      return Fail(e.line, "macros call each other too deeply");
    }
    // A macro sees its parameters and the template's own variables only.
    const size_t hidden_before = hidden_below_;
    Scope scope;
    scopes_.emplace_back();
    hidden_below_ = scopes_.size() - 1;
    for (size_t i = 0; i < macro.parameters.size(); ++i) {
      const auto& [name, otherwise] = macro.parameters[i];
      Value value = Value::Undefined(name);
      if (i < args.size()) {
        value = std::move(args[i]);
      } else if (otherwise != nullptr) {
        value = Evaluate(*otherwise);
      }
      for (auto& [other, given] : named) {
        if (other == name) value = given;
      }
      scopes_.back()[name] = std::move(value);
    }
    std::string out;
    Execute(macro.body, &out);
    scopes_.resize(hidden_below_);
    hidden_below_ = hidden_before;
    --calls_;
    return Text(e.line, std::move(out));
  }

  Value WrongArguments(const Expr& e, const Value& base) {
    return Fail(e.line, absl::StrCat("'", e.name, "' of a ", KindName(base),
                                     " with these arguments"));
  }

  static bool AllText(const Arguments& args) {
    return std::all_of(args.begin(), args.end(), [](const Value& v) {
      return v.is(Value::Kind::kString);
    });
  }

  static Value ItemsOf(const Value& dict, bool keys, bool values) {
    std::vector<Value> list;
    for (const auto& [key, value] : *dict.items) {
      if (keys && values) {
        list.push_back(Value::List({Value::String(key), value}));
      } else {
        list.push_back(keys ? Value::String(key) : value);
      }
    }
    return Value::List(std::move(list));
  }

  Value Method(const Expr& e, const Value& base, const Arguments& args) {
    if (!ok()) return Value();
    const std::string& name = e.name;
    if (base.is(Value::Kind::kDict) && e.named.empty()) {
      if (name == "items" && args.empty()) return ItemsOf(base, true, true);
      if (name == "keys" && args.empty()) return ItemsOf(base, true, false);
      if (name == "values" && args.empty()) return ItemsOf(base, false, true);
      if (name == "get" && (args.size() == 1 || args.size() == 2) &&
          args[0].is(Value::Kind::kString)) {
        const Value* found = base.Find(args[0].text);
        if (found != nullptr) return *found;
        return args.size() == 2 ? args[1] : Value::None();
      }
    }
    if (base.is(Value::Kind::kString) && e.named.empty() && AllText(args)) {
      const std::string& text = base.text;
      Charge(text.size());
      if (name == "upper" && args.empty()) return Upper(e.line, text);
      if (name == "lower" && args.empty()) return Lower(e.line, text);
      const bool left = name != "rstrip", right = name != "lstrip";
      if ((name == "strip" || !left || !right) && args.size() < 2) {
        return Value::String(
            Strip(text, args.empty() ? nullptr : &args[0].text, left, right));
      }
      if (name == "startswith" && args.size() == 1) {
        return Value::Bool(absl::StartsWith(text, args[0].text));
      }
      if (name == "endswith" && args.size() == 1) {
        return Value::Bool(absl::EndsWith(text, args[0].text));
      }
      if (name == "replace" && args.size() == 2 && !args[0].text.empty()) {
        return Text(e.line,
                    absl::StrReplaceAll(text, {{args[0].text, args[1].text}}));
      }
      if (name == "split" && args.size() == 1 && !args[0].text.empty()) {
        return Split(text, args[0].text);
      }
    }
    return WrongArguments(e, base);
  }

  static Value Split(absl::string_view text, absl::string_view separator) {
    std::vector<Value> parts;
    while (true) {
      const size_t at = text.find(separator);
      parts.push_back(Value::String(std::string(text.substr(0, at))));
      if (at == absl::string_view::npos) break;
      text.remove_prefix(at + separator.size());
    }
    return Value::List(std::move(parts));
  }

  // Letters beyond ASCII would need Unicode's tables.
  Value Upper(int line, const std::string& text) {
    if (!IsAscii(text)) return Fail(line, "upper of letters beyond ASCII");
    return Value::String(absl::AsciiStrToUpper(text));
  }
  Value Lower(int line, const std::string& text) {
    if (!IsAscii(text)) return Fail(line, "lower of letters beyond ASCII");
    return Value::String(absl::AsciiStrToLower(text));
  }
  static bool IsAscii(const std::string& text) {
    return std::all_of(text.begin(), text.end(),
                       [](unsigned char c) { return c < 0x80; });
  }

  Value Filter(const Expr& e, const Value& base, const Arguments& args) {
    if (!ok()) return Value();
    const std::string& name = e.name;
    if (name == "default" || name == "d") {
      bool also_false = args.size() == 2 && Truth(args[1]);
      for (const auto& [key, expr] : e.named) {
        if (key == "boolean") also_false = Truth(Evaluate(*expr));
      }
      const bool missing =
          base.is(Value::Kind::kUndefined) || (also_false && !Truth(base));
      if (!missing) return base;
      return args.empty() ? Value::String("") : args[0];
    }
    if (!e.named.empty()) return WrongArguments(e, base);
    if (name == "replace" && args.size() == 2 && AllText(args) &&
        !args[0].text.empty()) {
      return Text(e.line, absl::StrReplaceAll(Printed(e.line, base),
                                              {{args[0].text, args[1].text}}));
    }
    if (name == "join" && args.size() <= 1 && AllText(args)) {
      std::string out;
      const std::vector<Value> values = Iterate(e.line, base);
      for (size_t i = 0; i < values.size(); ++i) {
        if (i > 0 && !args.empty()) out += args[0].text;
        out += Printed(e.line, values[i]);
      }
      return Text(e.line, std::move(out));
    }
    if (name == "trim" && args.size() <= 1 && AllText(args)) {
      return Value::String(Strip(Printed(e.line, base),
                                 args.empty() ? nullptr : &args[0].text, true,
                                 true));
    }
    if (!args.empty()) return WrongArguments(e, base);
    if (name == "safe") return base;
    if (name == "string") return Value::String(Printed(e.line, base));
    if (name == "upper") return Upper(e.line, Printed(e.line, base));
    if (name == "lower") return Lower(e.line, Printed(e.line, base));
    if (name == "tojson") {
      std::string out;
      if (!WriteJson(base, &out)) return WrongArguments(e, base);
      return Text(e.line, std::move(out));
    }
    if (name == "items") {
      if (base.is(Value::Kind::kUndefined)) return Value::List({});
      if (!base.is(Value::Kind::kDict)) return WrongArguments(e, base);
      return ItemsOf(base, true, true);
    }
    std::vector<Value> values = Iterate(e.line, base);
    if (name == "length" || name == "count") {
      return Value::Int(static_cast<int64_t>(values.size()));
    }
    if (name == "list") return Value::List(std::move(values));
    if (values.empty()) return Value::Undefined(name);
    return name == "first" ? values.front() : values.back();
  }

  const std::map<std::string, Macro>& macros_;
  std::vector<Scope> scopes_;
  size_t hidden_below_ = 0;  // Scopes 1 .. hidden_below_ - 1 are a caller's.
  int steps_ = 0, calls_ = 0;
  absl::Status status_;
};

}  // namespace

struct JinjaTemplate::Program {
  std::map<std::string, Macro> macros;
  Block block;
};

JinjaTemplate::JinjaTemplate(std::unique_ptr<const Program> program)
    : program_(std::move(program)) {}
JinjaTemplate::~JinjaTemplate() = default;
JinjaTemplate::JinjaTemplate(JinjaTemplate&&) noexcept = default;
JinjaTemplate& JinjaTemplate::operator=(JinjaTemplate&&) noexcept = default;

absl::StatusOr<JinjaTemplate> JinjaTemplate::Parse(absl::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the template has ", source.size(), " bytes; at most ",
                     kMaxSourceBytes, " are allowed"));
  }
  DELTAEDGE_RETURN_IF_ERROR(CheckUtf8(source, "the template"));
  const std::string text =
      absl::StrReplaceAll(source, {{"\r\n", "\n"}, {"\r", "\n"}});
  absl::string_view kept = text;
  if (absl::EndsWith(kept, "\n")) kept.remove_suffix(1);
  DELTAEDGE_ASSIGN_OR_RETURN(std::vector<Segment> segments, Lexer(kept).Run());
  auto program = std::make_unique<Program>();
  DELTAEDGE_ASSIGN_OR_RETURN(
      program->block, Parser(std::move(segments), &program->macros).Run());
  return JinjaTemplate(std::move(program));
}

absl::StatusOr<std::string> JinjaTemplate::Render(
    const nlohmann::json& variables) const {
  return Interpreter(program_->macros, variables).Run(program_->block);
}

}  // namespace deltaedge
