// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TOOLS_CONVERT_JSON_SECTION_H_
#define DELTAEDGE_TOOLS_CONVERT_JSON_SECTION_H_

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace deltaedge {

// Reads the keys of one JSON object of a config file and remembers which have
// been asked for, so that those that nobody knows can be told. The first error
// sticks in a status that several sections share, so a reader asks for all it
// wants and looks at the status once; after an error, answers are empty.
//
// A key whose value is null is an absent key. Borrows the object.
class JsonSection {
 public:
  // `object` must be a JSON object. `prefix` goes before keys in messages
  // ("text_config."), `file` before all.
  JsonSection(const nlohmann::json& object, std::string prefix,
              std::string file, absl::Status* status)
      : object_(object),
        prefix_(std::move(prefix)),
        file_(std::move(file)),
        status_(status) {}

  // Null: absent.
  const nlohmann::json* Find(absl::string_view key);
  bool Has(absl::string_view key) { return Find(key) != nullptr; }

  // A value that is absent is an error.
  int32_t Int(absl::string_view key);
  double Number(absl::string_view key);
  std::string Text(absl::string_view key);

  // Unset if absent. A value of another kind is an error.
  std::optional<int32_t> OptionalInt(absl::string_view key);
  std::optional<double> OptionalNumber(absl::string_view key);
  std::optional<bool> OptionalBool(absl::string_view key);
  std::optional<std::string> OptionalText(absl::string_view key);
  std::optional<std::vector<int32_t>> OptionalInts(absl::string_view key);
  std::optional<std::vector<std::string>> OptionalTexts(absl::string_view key);
  // An object within: null if absent.
  const nlohmann::json* OptionalObject(absl::string_view key);

  // An error unless the key is absent or equals `value`.
  void Expect(absl::string_view key, const nlohmann::json& value);

  // These keys say nothing about the mathematics.
  void Ignore(std::initializer_list<absl::string_view> keys);

  // Keys that nobody asked for and whose value is not null, empty or, if that
  // `is_neutral`, false, as "prefix.key = value".
  std::vector<std::string> UnknownKeys(bool false_is_neutral = true) const;

  // Sets the shared status unless it is an error already: "file: prefix.key
  // what".
  void Fail(absl::string_view key, absl::string_view what);
  // The same for a key that has a value: "file: prefix.key is value; allowed".
  void Refuse(absl::string_view key, absl::string_view allowed);

  // "prefix.key", for messages.
  std::string Name(absl::string_view key) const;
  bool ok() const { return status_->ok(); }

 private:
  const nlohmann::json& object_;
  const std::string prefix_;
  const std::string file_;
  absl::Status* const status_;
  absl::btree_set<std::string> known_;
};

}  // namespace deltaedge

#endif  // DELTAEDGE_TOOLS_CONVERT_JSON_SECTION_H_
