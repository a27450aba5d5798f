// SPDX-License-Identifier: Apache-2.0

#include "tools/golden_check/golden_tensors.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/base/status_macros.h"

namespace deltaedge {

namespace {

std::string Join(absl::string_view section, absl::string_view name) {
  return section.empty() ? std::string(name) : absl::StrCat(section, ".", name);
}

// A section is letters and a number, nothing else: "p3".
absl::string_view SectionOf(absl::string_view full_name) {
  const absl::string_view head = full_name.substr(0, full_name.find('.'));
  if (head.size() == full_name.size()) return "";
  size_t letters = 0;
  while (letters < head.size() && absl::ascii_isalpha(head[letters])) ++letters;
  const absl::string_view digits = head.substr(letters);
  const bool number =
      !digits.empty() && std::all_of(digits.begin(), digits.end(), [](char c) {
        return absl::ascii_isdigit(c);
      });
  return letters > 0 && number ? head : "";
}

// p2 before p10.
bool ByNumber(const std::string& a, const std::string& b) {
  const auto letters = [](const std::string& s) {
    return s.substr(0, s.find_first_of("0123456789"));
  };
  if (letters(a) != letters(b)) return letters(a) < letters(b);
  return a.size() != b.size() ? a.size() < b.size() : a < b;
}

}  // namespace

absl::StatusOr<GoldenTensors> GoldenTensors::Open(const std::string& path) {
  DELTAEDGE_ASSIGN_OR_RETURN(Safetensors file, Safetensors::OpenFile(path));
  return GoldenTensors(std::move(file));
}

std::vector<std::string> GoldenTensors::Sections() const {
  absl::btree_set<std::string> sections;
  for (const auto& [name, entry] : file_.entries()) {
    sections.emplace(SectionOf(name));
  }
  std::vector<std::string> sorted(sections.begin(), sections.end());
  std::sort(sorted.begin(), sorted.end(), ByNumber);
  return sorted;
}

std::vector<std::string> GoldenTensors::Names(absl::string_view section) const {
  std::vector<std::string> names;
  for (const auto& [name, entry] : file_.entries()) {
    if (SectionOf(name) != section) continue;
    names.push_back(section.empty() ? name : name.substr(section.size() + 1));
  }
  return names;
}

bool GoldenTensors::Has(absl::string_view section,
                        absl::string_view name) const {
  return file_.Find(Join(section, name)) != nullptr;
}

absl::StatusOr<const SourceTensor*> GoldenTensors::Find(
    const std::string& full_name, size_t dims) {
  const SourceTensor* entry = file_.Find(full_name);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrCat("the golden has no ", full_name));
  }
  known_.insert(full_name);
  if (entry->shape.size() != dims) {
    return absl::InvalidArgumentError(
        absl::StrCat(full_name, " has shape ", ShapeText(entry->shape),
                     "; it must have ", dims, " dimensions"));
  }
  return entry;
}

absl::StatusOr<GoldenFloats> GoldenTensors::Floats(absl::string_view section,
                                                   absl::string_view name,
                                                   size_t dims) {
  const std::string full_name = Join(section, name);
  DELTAEDGE_ASSIGN_OR_RETURN(const SourceTensor* entry, Find(full_name, dims));
  GoldenFloats tensor;
  tensor.shape = entry->shape;
  DELTAEDGE_ASSIGN_OR_RETURN(tensor.values, file_.ReadFloats(full_name));
  return tensor;
}

absl::StatusOr<GoldenInts> GoldenTensors::Ints(absl::string_view section,
                                               absl::string_view name,
                                               size_t dims) {
  const std::string full_name = Join(section, name);
  DELTAEDGE_ASSIGN_OR_RETURN(const SourceTensor* entry, Find(full_name, dims));
  GoldenInts tensor;
  tensor.shape = entry->shape;
  DELTAEDGE_ASSIGN_OR_RETURN(tensor.values, file_.ReadInts(full_name));
  return tensor;
}

void GoldenTensors::Skip(absl::string_view section, absl::string_view name) {
  known_.insert(Join(section, name));
}

std::vector<std::string> GoldenTensors::Unknown() const {
  std::vector<std::string> unknown;
  for (const auto& [name, entry] : file_.entries()) {
    if (!known_.contains(name)) unknown.push_back(name);
  }
  return unknown;
}

absl::StatusOr<std::vector<TokenId>> ToTokens(absl::Span<const int64_t> values,
                                              int32_t vocab_size) {
  std::vector<TokenId> tokens;
  tokens.reserve(values.size());
  for (const int64_t value : values) {
    if (value < 0 || value >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", value, " in the golden; ids are 0 to ", vocab_size - 1));
    }
    tokens.push_back(static_cast<TokenId>(value));
  }
  return tokens;
}

absl::Status CheckShape(absl::Span<const int64_t> shape,
                        absl::Span<const int64_t> expected) {
  if (shape == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the golden has shape ", ShapeText(shape), ", the model ",
                   ShapeText(expected)));
}

std::pair<std::string, int32_t> SplitNumber(absl::string_view name) {
  const size_t dot = name.rfind('.');
  int32_t number = -1;
  if (dot == absl::string_view::npos || name.size() - dot - 1 > 9 ||
      name.find_first_not_of("0123456789", dot + 1) !=
          absl::string_view::npos ||
      !absl::SimpleAtoi(name.substr(dot + 1), &number)) {
    return {std::string(name), -1};
  }
  return {std::string(name.substr(0, dot)), number};
}

}  // namespace deltaedge
