// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/json.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/convert/printable_name.h"
#include "tools/convert/random_access_file.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

// Builds a document and stops at the first thing that is not allowed. The
// library's own builder keeps the last of several equal keys and has no limit
// of depth.
class Builder : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(int64_t value) override { return Add(value); }
  bool number_unsigned(uint64_t value) override { return Add(value); }
  bool number_float(double value, const std::string&) override {
    return Add(value);
  }
  bool string(std::string& value) override { return Add(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }

  bool start_object(size_t) override { return Open(Json::object()); }
  bool start_array(size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(std::string& value) override {
    const auto [slot, added] = open_.back()->emplace(value, nullptr);
    if (!added) {
      error_ = absl::StrCat("key ", QuotedName(value), " occurs twice");
      return false;
    }
    slot_ = &*slot;
    return true;
  }

  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    error_ = JsonErrorText(error);
    return false;
  }

  const std::string& error() const { return error_; }
  Json TakeRoot() { return std::move(root_); }

 private:
  // Where the next value goes: the root, a key's value, or an array's end.
  Json* Place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(value));
      return &open_.back()->back();
    }
    *slot_ = std::move(value);
    return slot_;
  }

  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }

  bool Open(Json value) {
    if (open_.size() == kMaxJsonDepth) {
      error_ = absl::StrCat("is nested deeper than ", kMaxJsonDepth, " levels");
      return false;
    }
    open_.push_back(Place(std::move(value)));
    return true;
  }

  bool Close() {
    open_.pop_back();
    return true;
  }

  Json root_;
  std::vector<Json*> open_;
  Json* slot_ = nullptr;
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ParseJson(absl::string_view text,
                               absl::string_view source) {
  Builder builder;
  if (!Json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(
        absl::StrCat(source, ": is not sound JSON: ", builder.error()));
  }
  return builder.TakeRoot();
}

absl::StatusOr<Json> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string text,
                             ReadSmallFile(path, max_bytes));
  return ParseJson(text, path);
}

std::string ShortJson(const Json& value) {
  constexpr size_t kMaxLength = 80;
  std::string text =
      value.dump(/*indent=*/-1, /*indent_char=*/' ', /*ensure_ascii=*/true,
                 Json::error_handler_t::replace);
  if (text.size() > kMaxLength) {
    text.resize(kMaxLength);
    text += "...";
  }
  return text;
}

std::string JsonErrorText(const Json::exception& error) {
  absl::string_view text = error.what();
  const size_t prefix_end = text.find("] ");
  if (prefix_end != absl::string_view::npos) {
    text.remove_prefix(prefix_end + 2);
  }
  return std::string(text);
}

}  // namespace deltaedge
