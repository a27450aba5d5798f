// SPDX-License-Identifier: Apache-2.0

#include "tools/make_random/safetensors_writer.h"

#include <cassert>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "engine/base/bfloat16.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

int64_t Elements(const SafetensorsSpec& tensor) {
  int64_t elements = 1;
  for (const int64_t extent : tensor.shape) elements *= extent;
  return elements;
}

int64_t Bytes(const SafetensorsSpec& tensor) {
  return Elements(tensor) * (tensor.bf16 ? 2 : 4);
}

template <class Bits>
void StoreBits(Bits bits, char* to) {
  for (size_t i = 0; i < sizeof(Bits); ++i) {
    to[i] = static_cast<char>(bits >> (8 * i));
  }
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(std::string folder,
                                     std::vector<SafetensorsSpec> tensors,
                                     int64_t max_shard_bytes)
    : folder_(std::move(folder)), tensors_(std::move(tensors)) {
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const int64_t more = Bytes(tensors_[i]);
    if (i == 0 || bytes + more > max_shard_bytes) {
      shards_.push_back(i);
      bytes = 0;
    }
    bytes += more;
  }
  shards_.push_back(tensors_.size());
}

std::string SafetensorsWriter::ShardName(size_t shard) const {
  return shards_.size() <= 2 ? "model.safetensors"
                             : absl::StrFormat("model-%05d-of-%05d.safetensors",
                                               shard + 1, shards_.size() - 1);
}

absl::Status SafetensorsWriter::Begin(size_t shard) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  int64_t end = 0;
  for (size_t i = shards_[shard]; i < shards_[shard + 1]; ++i) {
    const SafetensorsSpec& tensor = tensors_[i];
    const int64_t begin = end;
    end += Bytes(tensor);
    header[tensor.name] = {{"dtype", tensor.bf16 ? "BF16" : "F32"},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string length(8, '\0');
  StoreBits(static_cast<uint64_t>(text.size()), length.data());
  path_ = absl::StrCat(folder_, "/", ShardName(shard));
  file_.reset(std::fopen(path_.c_str(), "wbx"));
  if (file_ == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot be made"));
  }
  DELTAEDGE_RETURN_IF_ERROR(Write(length));
  return Write(text);
}

absl::Status SafetensorsWriter::Write(absl::Span<const char> bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size()) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot be written"));
}

absl::Status SafetensorsWriter::Close() {
  if (file_ == nullptr || std::fclose(file_.release()) == 0) {
    return absl::OkStatus();
  }
  return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot be written"));
}

absl::Status SafetensorsWriter::Append(absl::Span<const float> values) {
  assert(tensor_ < tensors_.size());
  if (shard_ + 1 < shards_.size() && tensor_ == shards_[shard_] &&
      written_ == 0) {
    DELTAEDGE_RETURN_IF_ERROR(Close());
    DELTAEDGE_RETURN_IF_ERROR(Begin(shard_++));
  }
  const SafetensorsSpec& tensor = tensors_[tensor_];
  const size_t size = tensor.bf16 ? 2 : 4;
  bytes_.resize(values.size() * size);
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.bf16) {
      StoreBits(Bfloat16FromFloat(values[i]), &bytes_[i * size]);
    } else {
      uint32_t bits;
      std::memcpy(&bits, &values[i], sizeof(bits));
      StoreBits(bits, &bytes_[i * size]);
    }
  }
  DELTAEDGE_RETURN_IF_ERROR(Write(bytes_));
  written_ += static_cast<int64_t>(values.size());
  assert(written_ <= Elements(tensor));
  if (written_ == Elements(tensor)) {
    ++tensor_;
    written_ = 0;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsWriter::Finish() {
  assert(tensor_ == tensors_.size());
  DELTAEDGE_RETURN_IF_ERROR(Close());
  if (shards_.size() <= 2) return absl::OkStatus();
  Json map = Json::object();
  int64_t total = 0;
  for (size_t shard = 0; shard + 1 < shards_.size(); ++shard) {
    for (size_t i = shards_[shard]; i < shards_[shard + 1]; ++i) {
      map[tensors_[i].name] = ShardName(shard);
      total += Bytes(tensors_[i]);
    }
  }
  const Json index = {{"metadata", {{"total_size", total}}},
                      {"weight_map", map}};
  path_ = absl::StrCat(folder_, "/model.safetensors.index.json");
  file_.reset(std::fopen(path_.c_str(), "wbx"));
  if (file_ == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path_, ": cannot be made"));
  }
  DELTAEDGE_RETURN_IF_ERROR(Write(index.dump(2) + "\n"));
  return Close();
}

}  // namespace deltaedge
