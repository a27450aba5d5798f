// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TOOLS_CONVERT_SAFETENSORS_WRITER_H_
#define DELTAEDGE_TESTS_TOOLS_CONVERT_SAFETENSORS_WRITER_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace deltaedge::testing {

// `header_bytes` as the eight bytes that begin a safetensors file.
inline std::string SafetensorsLength(uint64_t header_bytes) {
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) {
    length[i] = static_cast<char>(header_bytes >> (8 * i));
  }
  return length;
}

// A safetensors file of any header, sound or not, and any data.
inline std::string SafetensorsBytes(absl::string_view header,
                                    absl::string_view data) {
  return absl::StrCat(SafetensorsLength(header.size()), header, data);
}

// Writes sound safetensors files, tensor behind tensor.
class SafetensorsWriter {
 public:
  void Add(absl::string_view name, absl::string_view dtype,
           const std::vector<int64_t>& shape, absl::string_view bytes) {
    entries_.push_back(absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype,
                                    "\",\"shape\":[", absl::StrJoin(shape, ","),
                                    "],\"data_offsets\":[", data_.size(), ",",
                                    data_.size() + bytes.size(), "]}"));
    absl::StrAppend(&data_, bytes);
  }

  void AddFloats(absl::string_view name, const std::vector<int64_t>& shape,
                 const std::vector<float>& values) {
    std::string bytes(values.size() * sizeof(float), '\0');
    if (!bytes.empty()) std::memcpy(&bytes[0], values.data(), bytes.size());
    Add(name, "F32", shape, bytes);
  }

  std::string Bytes() const {
    return SafetensorsBytes(
        absl::StrCat("{", absl::StrJoin(entries_, ","), "}"), data_);
  }

 private:
  std::vector<std::string> entries_;
  std::string data_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TOOLS_CONVERT_SAFETENSORS_WRITER_H_
