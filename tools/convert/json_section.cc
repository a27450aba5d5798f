// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/json_section.h"

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "tools/convert/json.h"
#include "tools/convert/printable_name.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

std::optional<int32_t> AsInt(const Json& value) {
  using Limits = std::numeric_limits<int32_t>;
  if (value.is_number_unsigned()) {
    const uint64_t number = *value.get_ptr<const uint64_t*>();
    if (number > static_cast<uint64_t>(Limits::max())) return std::nullopt;
    return static_cast<int32_t>(number);
  }
  if (value.is_number_integer()) {
    const int64_t number = *value.get_ptr<const int64_t*>();
    if (number < Limits::min() || number > Limits::max()) return std::nullopt;
    return static_cast<int32_t>(number);
  }
  return std::nullopt;
}

}  // namespace

const Json* JsonSection::Find(absl::string_view key) {
  std::string name(key);
  const auto found = object_.find(name);
  known_.insert(std::move(name));
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

int32_t JsonSection::Int(absl::string_view key) {
  const std::optional<int32_t> value = OptionalInt(key);
  if (!value.has_value()) Fail(key, "is missing");
  return value.value_or(0);
}

double JsonSection::Number(absl::string_view key) {
  const std::optional<double> value = OptionalNumber(key);
  if (!value.has_value()) Fail(key, "is missing");
  return value.value_or(0);
}

std::string JsonSection::Text(absl::string_view key) {
  const std::optional<std::string> value = OptionalText(key);
  if (!value.has_value()) Fail(key, "is missing");
  return value.value_or("");
}

std::optional<int32_t> JsonSection::OptionalInt(absl::string_view key) {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int32_t> number = AsInt(*value);
  if (!number.has_value()) Refuse(key, "an integer of 32 bits is expected");
  return number;
}

std::optional<double> JsonSection::OptionalNumber(absl::string_view key) {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    Refuse(key, "a number is expected");
    return std::nullopt;
  }
  return value->get<double>();
}

std::optional<bool> JsonSection::OptionalBool(absl::string_view key) {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    Refuse(key, "true or false is expected");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> JsonSection::OptionalText(absl::string_view key) {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    Refuse(key, "a text is expected");
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::optional<std::vector<int32_t>> JsonSection::OptionalInts(
    absl::string_view key) {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<int32_t> numbers;
  bool sound = value->is_array();
  for (size_t i = 0; sound && i < value->size(); ++i) {
    const std::optional<int32_t> number = AsInt((*value)[i]);
    sound = number.has_value();
    numbers.push_back(number.value_or(0));
  }
  if (sound) return numbers;
  Refuse(key, "a list of integers of 32 bits is expected");
  return std::nullopt;
}

std::optional<std::vector<std::string>> JsonSection::OptionalTexts(
    absl::string_view key) {
  const Json* const value = Find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  bool sound = value->is_array();
  for (size_t i = 0; sound && i < value->size(); ++i) {
    sound = (*value)[i].is_string();
    if (sound) texts.push_back((*value)[i].get<std::string>());
  }
  if (sound) return texts;
  Refuse(key, "a list of texts is expected");
  return std::nullopt;
}

const Json* JsonSection::OptionalObject(absl::string_view key) {
  const Json* const value = Find(key);
  if (value == nullptr || value->is_object()) return value;
  Refuse(key, "an object is expected");
  return nullptr;
}

void JsonSection::Expect(absl::string_view key, const Json& value) {
  const Json* const found = Find(key);
  // Not `!=`, which is false for a NaN.
  if (found != nullptr && !(*found == value)) {
    Refuse(key, absl::StrCat("only ", ShortJson(value), " is supported"));
  }
}

void JsonSection::Ignore(std::initializer_list<absl::string_view> keys) {
  for (const absl::string_view key : keys) known_.emplace(key);
}

std::vector<std::string> JsonSection::UnknownKeys(bool false_is_neutral) const {
  std::vector<std::string> unknown;
  for (const auto& [key, value] : object_.items()) {
    const bool neutral =
        value.is_null() || (false_is_neutral && value == Json(false)) ||
        (value.is_string() && value.get_ref<const std::string&>().empty()) ||
        (value.is_structured() && value.empty());
    if (neutral || known_.contains(key)) continue;
    unknown.push_back(absl::StrCat(Name(key), " = ", ShortJson(value)));
  }
  return unknown;
}

void JsonSection::Fail(absl::string_view key, absl::string_view what) {
  if (!status_->ok()) return;
  *status_ = absl::InvalidArgumentError(
      absl::StrCat(file_, ": ", Name(key), " ", what));
}

void JsonSection::Refuse(absl::string_view key, absl::string_view allowed) {
  const Json* const value = Find(key);
  Fail(key, absl::StrCat("is ", value == nullptr ? "absent" : ShortJson(*value),
                         "; ", allowed));
}

std::string JsonSection::Name(absl::string_view key) const {
  return PrintableName(absl::StrCat(prefix_, key));
}

}  // namespace deltaedge
