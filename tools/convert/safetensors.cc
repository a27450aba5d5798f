// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/convert/json.h"
#include "tools/convert/number_bits.h"
#include "tools/convert/printable_name.h"
#include "tools/convert/random_access_file.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;

constexpr int64_t kLengthBytes = 8;
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr size_t kMaxRank = 8;
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

template <class Bits, class Stored>
int64_t FromInt(const unsigned char* from) {
  return static_cast<Stored>(LoadBits<Bits>(from));
}

template <class Value, size_t kBytes, Value (*kDecode)(const unsigned char*)>
void DecodeAll(const unsigned char* from, int64_t count, Value* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = kDecode(from + i * kBytes);
}

template <class Value>
using Decoder = void (*)(const unsigned char* from, int64_t count, Value* to);

// Every type of the format that has whole bytes. Those without a decoder are
// listed and cannot be read.
struct TypeInfo {
  const char* name;
  int64_t bytes;
  Decoder<float> floats;
  Decoder<int64_t> ints;
};

template <class Bits, class Stored>
constexpr Decoder<int64_t> kInts =
    &DecodeAll<int64_t, sizeof(Bits), &FromInt<Bits, Stored>>;

constexpr TypeInfo kTypes[] = {
    {"F32", 4, &DecodeAll<float, 4, &LoadF32>, nullptr},
    {"F16", 2, &DecodeAll<float, 2, &LoadF16>, nullptr},
    {"BF16", 2, &DecodeAll<float, 2, &LoadBf16>, nullptr},
    {"BOOL", 1, nullptr, kInts<uint8_t, uint8_t>},
    {"U8", 1, nullptr, kInts<uint8_t, uint8_t>},
    {"I8", 1, nullptr, kInts<uint8_t, int8_t>},
    {"U16", 2, nullptr, kInts<uint16_t, uint16_t>},
    {"I16", 2, nullptr, kInts<uint16_t, int16_t>},
    {"U32", 4, nullptr, kInts<uint32_t, uint32_t>},
    {"I32", 4, nullptr, kInts<uint32_t, int32_t>},
    {"I64", 8, nullptr, kInts<uint64_t, int64_t>},
    {"U64", 8, nullptr, nullptr},
    {"F64", 8, nullptr, nullptr},
    {"C64", 8, nullptr, nullptr},
    {"F8_E4M3", 1, nullptr, nullptr},
    {"F8_E5M2", 1, nullptr, nullptr},
    {"F8_E8M0", 1, nullptr, nullptr},
};

const TypeInfo* FindType(absl::string_view name) {
  for (const TypeInfo& type : kTypes) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

Decoder<float> DecoderOf(const TypeInfo& type, float) { return type.floats; }
Decoder<int64_t> DecoderOf(const TypeInfo& type, int64_t) { return type.ints; }

// Reads a header without building a document of it: the text may be large, and
// must be what the format says and nothing else.
//   {"__metadata__": {key: text, ...},
//    name: {"dtype": text, "shape": [n, ...], "data_offsets": [begin, end]}}
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  // Entries' offsets are from the end of the header.
  explicit HeaderReader(Safetensors::Entries* entries) : entries_(entries) {}

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a truth value"); }
  bool number_float(double, const std::string& text) override {
    return Unexpected(text);
  }
  bool number_integer(int64_t value) override {
    return Unexpected(absl::StrCat(value));
  }
  bool binary(Json::binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) {
      return Unexpected(absl::StrCat(value));
    }
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return Fail(absl::StrCat(TensorKey(), " holds ", value,
                               ", which no file can have"));
    }
    if (numbers_.size() == kMaxRank) {
      return Fail(
          absl::StrCat(TensorKey(), " has more than ", kMaxRank, " numbers"));
    }
    numbers_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::kMetadata) return true;
    if (place_ != Place::kTensor || key_ != "dtype") {
      return Unexpected(QuotedName(value));
    }
    entry_.dtype = std::move(value);
    return true;
  }

  bool start_object(size_t) override {
    if (place_ == Place::kNothing) {
      place_ = Place::kRoot;
    } else if (place_ == Place::kRoot && name_ == "__metadata__") {
      place_ = Place::kMetadata;
    } else if (place_ == Place::kRoot) {
      place_ = Place::kTensor;
      entry_ = SourceTensor();
      key_.clear();
      has_shape_ = has_offsets_ = false;
    } else {
      return Unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor && !AddEntry()) return false;
    place_ = Place::kRoot;
    return true;
  }

  bool start_array(size_t) override {
    if (place_ != Place::kTensor || key_ == "dtype" || key_.empty()) {
      return Unexpected("an array");
    }
    place_ = key_ == "shape" ? Place::kShape : Place::kOffsets;
    numbers_.clear();
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kShape) {
      entry_.shape = numbers_;
      has_shape_ = true;
    } else {
      if (numbers_.size() != 2) {
        return Fail(absl::StrCat(TensorKey(), " has ", numbers_.size(),
                                 " numbers; it has 2"));
      }
      if (numbers_[0] > numbers_[1]) {
        return Fail(absl::StrCat(TensorKey(), " begins at ", numbers_[0],
                                 ", behind its end ", numbers_[1]));
      }
      entry_.offset = numbers_[0];
      entry_.bytes = numbers_[1] - numbers_[0];
      has_offsets_ = true;
    }
    place_ = Place::kTensor;
    return true;
  }

  bool key(std::string& value) override {
    if (place_ == Place::kRoot) {
      name_ = std::move(value);
      if (name_ == "__metadata__" && std::exchange(has_metadata_, true)) {
        return Fail("the header has two \"__metadata__\"");
      }
      if (name_.empty()) return Fail("a tensor has an empty name");
      return true;
    }
    if (place_ == Place::kMetadata) return true;
    const bool again = (value == "dtype" && !entry_.dtype.empty()) ||
                       (value == "shape" && has_shape_) ||
                       (value == "data_offsets" && has_offsets_);
    if (again ||
        (value != "dtype" && value != "shape" && value != "data_offsets")) {
      return Fail(absl::StrCat("tensor ", QuotedName(name_), " has ",
                               again ? "two keys " : "the unknown key ",
                               QuotedName(value)));
    }
    key_ = std::move(value);
    return true;
  }

  bool parse_error(size_t, const std::string&,
                   const nlohmann::detail::exception& error) override {
    return Fail(absl::StrCat("the header is not JSON: ", JsonErrorText(error)));
  }

  const std::string& error() const { return error_; }

 private:
  enum class Place { kNothing, kRoot, kMetadata, kTensor, kShape, kOffsets };

  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  bool Unexpected(absl::string_view what) {
    if (place_ == Place::kNothing) {
      return Fail(absl::StrCat("the header is ", what, ", not an object"));
    }
    if (place_ == Place::kRoot) {
      return Fail(absl::StrCat("header entry ", QuotedName(name_), " is ", what,
                               ", not an object"));
    }
    if (place_ == Place::kMetadata) {
      return Fail(absl::StrCat("\"__metadata__\" holds ", what,
                               "; only texts are allowed"));
    }
    return Fail(absl::StrCat(TensorKey(), " holds ", what));
  }

  std::string TensorKey() const {
    return absl::StrCat("tensor ", QuotedName(name_), ": ",
                        key_.empty() ? "its description" : key_);
  }

  bool AddEntry() {
    const char* missing = entry_.dtype.empty() ? "dtype"
                          : !has_shape_        ? "shape"
                          : !has_offsets_      ? "data_offsets"
                                               : nullptr;
    const std::string tensor = absl::StrCat("tensor ", QuotedName(name_));
    if (missing != nullptr) {
      return Fail(absl::StrCat(tensor, " has no ", missing));
    }
    const TypeInfo* const type = FindType(entry_.dtype);
    if (type == nullptr) {
      return Fail(absl::StrCat(tensor, " has the unknown type ",
                               QuotedName(entry_.dtype)));
    }
    int64_t elements = 1;
    bool fits = true;
    for (const int64_t extent : entry_.shape) {
      fits = fits && !__builtin_mul_overflow(elements, extent, &elements);
    }
    int64_t bytes = 0;
    fits = fits && !__builtin_mul_overflow(elements, type->bytes, &bytes);
    if (!fits) {
      return Fail(absl::StrCat(tensor, " of shape ", ShapeText(entry_.shape),
                               " has more bytes than can be counted"));
    }
    if (bytes != entry_.bytes) {
      return Fail(absl::StrCat(tensor, " of type ", entry_.dtype, " and shape ",
                               ShapeText(entry_.shape), " has ", bytes,
                               " bytes, but its data_offsets span ",
                               entry_.bytes));
    }
    entry_.elements = elements;
    entry_.is_float = type->floats != nullptr;
    if (!entries_->emplace(name_, std::move(entry_)).second) {
      return Fail(absl::StrCat(tensor, " occurs twice"));
    }
    return true;
  }

  Safetensors::Entries* const entries_;
  Place place_ = Place::kNothing;
  std::string name_;  // Of the entry at hand.
  std::string key_;   // Within a tensor.
  SourceTensor entry_;
  std::vector<int64_t> numbers_;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  bool has_metadata_ = false;
  std::string error_;
};

// Tensors must cover the data bytes exactly, in some order.
absl::Status CheckCover(const Safetensors::Entries& entries, int64_t data_bytes,
                        const std::string& path) {
  std::vector<const Safetensors::Entries::value_type*> by_offset;
  by_offset.reserve(entries.size());
  for (const auto& item : entries) by_offset.push_back(&item);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const auto* a, const auto* b) {
              return std::make_pair(a->second.offset, a->second.bytes) <
                     std::make_pair(b->second.offset, b->second.bytes);
            });
  int64_t covered = 0;
  for (const auto* item : by_offset) {
    const SourceTensor& entry = item->second;
    const int64_t end = entry.offset + entry.bytes;
    if (end > data_bytes) {
      return absl::DataLossError(absl::StrCat(
          path, ": tensor ", QuotedName(item->first), " ends at data byte ",
          end, ", but the file has ", data_bytes, " of them"));
    }
    if (entry.offset != covered) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": tensor ", QuotedName(item->first), " begins at data byte ",
          entry.offset, entry.offset < covered ? ", inside " : ", not behind ",
          "the tensor before it, which ends at ", covered));
    }
    covered = end;
  }
  if (covered != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", data_bytes - covered, " bytes behind its last tensor"));
  }
  return absl::OkStatus();
}

// Reads `file`'s header into `entries`, with offsets from the file's start.
absl::Status ReadHeader(const RandomAccessFile& file,
                        Safetensors::Entries* entries) {
  const std::string& path = file.path();
  if (file.size_bytes() < kLengthBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", file.size_bytes(),
                     " bytes; a safetensors file has at least 8"));
  }
  unsigned char length[kLengthBytes];
  DELTAEDGE_RETURN_IF_ERROR(file.Read(0, kLengthBytes, length));
  const uint64_t header_bytes = LoadBits<uint64_t>(length);
  const int64_t room = file.size_bytes() - kLengthBytes;
  if (std::memcmp(length, "version ", kLengthBytes) == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": is a pointer of Git LFS; the file itself was not fetched"));
  }
  if (header_bytes > static_cast<uint64_t>(std::min(kMaxHeaderBytes, room))) {
    return absl::InvalidArgumentError(absl::StrCat(
        path,
        ": is no safetensors file or is cut short: its header would have ",
        header_bytes, " bytes; ", room, " follow, and at most ",
        kMaxHeaderBytes, " are allowed"));
  }
  std::string header(header_bytes, '\0');
  DELTAEDGE_RETURN_IF_ERROR(
      file.Read(kLengthBytes, static_cast<int64_t>(header_bytes), &header[0]));
  HeaderReader reader(entries);
  if (!Json::sax_parse(header, &reader)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", reader.error()));
  }
  const int64_t data_begin = kLengthBytes + static_cast<int64_t>(header_bytes);
  DELTAEDGE_RETURN_IF_ERROR(
      CheckCover(*entries, file.size_bytes() - data_begin, path));
  for (auto& item : *entries) item.second.offset += data_begin;
  return absl::OkStatus();
}

}  // namespace

absl::Status Safetensors::AddFile(const std::string& path) {
  DELTAEDGE_ASSIGN_OR_RETURN(RandomAccessFile file,
                             RandomAccessFile::Open(path));
  Entries entries;
  DELTAEDGE_RETURN_IF_ERROR(ReadHeader(file, &entries));
  files_.push_back(std::move(file));
  for (auto& item : entries) {
    item.second.file = static_cast<int32_t>(files_.size()) - 1;
    const auto [place, added] =
        entries_.emplace(item.first, std::move(item.second));
    if (!added) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tensor ", QuotedName(item.first),
                       " is also in ", PathOf(place->second)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Safetensors> Safetensors::OpenFile(const std::string& path) {
  Safetensors checkpoint;
  DELTAEDGE_RETURN_IF_ERROR(checkpoint.AddFile(path));
  return checkpoint;
}

absl::StatusOr<Safetensors> Safetensors::OpenFolder(const std::string& folder) {
  const std::string single = absl::StrCat(folder, "/", kSingleFile);
  const auto single_file = RandomAccessFile::Open(single);
  if (!absl::IsNotFound(single_file.status())) return OpenFile(single);

  const std::string index_path = absl::StrCat(folder, "/", kIndexFile);
  const absl::StatusOr<Json> index = ReadJsonFile(index_path, kMaxIndexBytes);
  if (absl::IsNotFound(index.status())) {
    return absl::NotFoundError(absl::StrCat(folder, ": has neither ",
                                            kSingleFile, " nor ", kIndexFile));
  }
  DELTAEDGE_RETURN_IF_ERROR(index.status());
  const auto map =
      index->is_object() ? index->find("weight_map") : index->end();
  if (!index->is_object() || map == index->end() || !map->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, ": has no object \"weight_map\""));
  }

  // Shard by tensor, and the shards in order of name.
  absl::btree_map<std::string, std::string> shard_of;
  absl::btree_map<std::string, int64_t> tensors_in;
  for (const auto& [name, shard] : map->items()) {
    const std::string* const file = shard.get_ptr<const std::string*>();
    if (file == nullptr || !absl::EndsWith(*file, ".safetensors") ||
        absl::StrContains(*file, '/') || absl::StrContains(*file, '\0')) {
      return absl::InvalidArgumentError(absl::StrCat(
          index_path, ": tensor ", QuotedName(name), " is in ",
          ShortJson(shard), ", which is no file name ending in .safetensors"));
    }
    shard_of.emplace(name, *file);
    ++tensors_in[*file];
  }
  Safetensors checkpoint;
  for (const auto& [shard, count] : tensors_in) {
    const absl::Status added =
        checkpoint.AddFile(absl::StrCat(folder, "/", shard));
    if (absl::IsNotFound(added)) {
      return absl::NotFoundError(absl::StrCat(index_path, ": shard ",
                                              QuotedName(shard), " with ",
                                              count, " tensors is missing"));
    }
    DELTAEDGE_RETURN_IF_ERROR(added);
  }
  for (const auto& [name, shard] : shard_of) {
    const SourceTensor* const entry = checkpoint.Find(name);
    const std::string path = absl::StrCat(folder, "/", shard);
    if (entry == nullptr || checkpoint.PathOf(*entry) != path) {
      return absl::InvalidArgumentError(absl::StrCat(
          index_path, ": tensor ", QuotedName(name), " is not in ", path,
          entry == nullptr
              ? ""
              : absl::StrCat(" but in ", checkpoint.PathOf(*entry))));
    }
  }
  for (const auto& [name, entry] : checkpoint.entries()) {
    if (!shard_of.contains(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat(checkpoint.PathOf(entry), ": tensor ", QuotedName(name),
                       " is not listed in ", index_path));
    }
  }
  return checkpoint;
}

template <class Value>
absl::Status Safetensors::Read(const SourceTensor& entry, int64_t first,
                               absl::Span<Value> out) const {
  const TypeInfo* const type = FindType(entry.dtype);
  const auto decode = type == nullptr ? nullptr : DecoderOf(*type, Value());
  if (decode == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        PathOf(entry), ": values of type ", entry.dtype, " cannot be read as ",
        std::is_integral_v<Value> ? "integers" : "floats"));
  }
  const int64_t count = static_cast<int64_t>(out.size());
  DELTAEDGE_RETURN_IF_ERROR(CheckRange(entry, first, count));
  constexpr int64_t kPieceBytes = 1 << 16;
  std::vector<unsigned char> piece(std::min(kPieceBytes, count * type->bytes));
  const int64_t piece_elements = kPieceBytes / type->bytes;
  for (int64_t done = 0; done < count; done += piece_elements) {
    const int64_t now = std::min(piece_elements, count - done);
    DELTAEDGE_RETURN_IF_ERROR(
        files_[entry.file].Read(entry.offset + (first + done) * type->bytes,
                                now * type->bytes, piece.data()));
    decode(piece.data(), now, out.data() + done);
  }
  return absl::OkStatus();
}

absl::Status Safetensors::ReadFloats(const SourceTensor& entry, int64_t first,
                                     absl::Span<float> out) const {
  return Read(entry, first, out);
}

absl::Status Safetensors::ReadInts(const SourceTensor& entry, int64_t first,
                                   absl::Span<int64_t> out) const {
  return Read(entry, first, out);
}

template <class Value>
absl::StatusOr<std::vector<Value>> Safetensors::ReadAll(
    absl::string_view name) const {
  const SourceTensor* const entry = Find(name);
  if (entry == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(files_.empty() ? "" : files_[0].path(), ": has no tensor ",
                     QuotedName(name)));
  }
  std::vector<Value> values(entry->elements);
  DELTAEDGE_RETURN_IF_ERROR(Read(*entry, 0, absl::MakeSpan(values)));
  return values;
}

absl::StatusOr<std::vector<float>> Safetensors::ReadFloats(
    absl::string_view name) const {
  return ReadAll<float>(name);
}

absl::StatusOr<std::vector<int64_t>> Safetensors::ReadInts(
    absl::string_view name) const {
  return ReadAll<int64_t>(name);
}

}  // namespace deltaedge
