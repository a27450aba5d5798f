// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/gguf.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
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

// Far above what any published file has, and low enough that a file cannot make
// this process hold much.
constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kMaxKeys = 1 << 16;
constexpr int64_t kMaxTensors = 1 << 17;
constexpr int64_t kMaxArrayValues = 1 << 22;  // In all arrays together.
constexpr uint32_t kMaxRank = 4;
constexpr int64_t kMaxAlignment = 1 << 20;
constexpr int32_t kMaxParts = 1000;

constexpr char kAlignment[] = "general.alignment";
constexpr char kSplitNo[] = "split.no";
constexpr char kSplitCount[] = "split.count";

// ---- Types ------------------------------------------------------------------

constexpr int64_t kBlock = 32;  // Values under one scale.

template <size_t kBytes, float (*kLoad)(const unsigned char*)>
void DecodeFloats(const unsigned char* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = kLoad(from + i * kBytes);
}

void DecodeQ80(const unsigned char* from, int64_t blocks, float* to) {
  for (int64_t b = 0; b < blocks; ++b, from += 2 + kBlock, to += kBlock) {
    const float scale = LoadF16(from);
    for (int64_t i = 0; i < kBlock; ++i) {
      to[i] = scale * static_cast<float>(static_cast<int8_t>(from[2 + i]));
    }
  }
}

// Low halves of the bytes are the block's first 16 numbers, high ones the rest.
void DecodeQ40(const unsigned char* from, int64_t blocks, float* to) {
  constexpr int64_t kHalf = kBlock / 2;
  for (int64_t b = 0; b < blocks; ++b, from += 2 + kHalf, to += kBlock) {
    const float scale = LoadF16(from);
    for (int64_t i = 0; i < kHalf; ++i) {
      const int pair = from[2 + i];
      to[i] = scale * static_cast<float>((pair & 15) - 8);
      to[kHalf + i] = scale * static_cast<float>((pair >> 4) - 8);
    }
  }
}

// Types of tensors. Those that cannot be read have no decoder.
struct TypeInfo {
  uint32_t id;
  const char* name;
  int64_t block;        // Values that are stored together.
  int64_t block_bytes;  // Of one such group.
  void (*decode)(const unsigned char* from, int64_t blocks, float* to);
};

constexpr TypeInfo kTypes[] = {
    {0, "F32", 1, 4, &DecodeFloats<4, &LoadF32>},
    {1, "F16", 1, 2, &DecodeFloats<2, &LoadF16>},
    {30, "BF16", 1, 2, &DecodeFloats<2, &LoadBf16>},
    {8, "Q8_0", kBlock, 2 + kBlock, &DecodeQ80},
    {2, "Q4_0", kBlock, 2 + kBlock / 2, &DecodeQ40},
    {3, "Q4_1", 0, 0, nullptr},
    {6, "Q5_0", 0, 0, nullptr},
    {7, "Q5_1", 0, 0, nullptr},
    {9, "Q8_1", 0, 0, nullptr},
    {10, "Q2_K", 0, 0, nullptr},
    {11, "Q3_K", 0, 0, nullptr},
    {12, "Q4_K", 0, 0, nullptr},
    {13, "Q5_K", 0, 0, nullptr},
    {14, "Q6_K", 0, 0, nullptr},
    {15, "Q8_K", 0, 0, nullptr},
    {16, "IQ2_XXS", 0, 0, nullptr},
    {17, "IQ2_XS", 0, 0, nullptr},
    {18, "IQ3_XXS", 0, 0, nullptr},
    {19, "IQ1_S", 0, 0, nullptr},
    {20, "IQ4_NL", 0, 0, nullptr},
    {21, "IQ3_S", 0, 0, nullptr},
    {22, "IQ2_S", 0, 0, nullptr},
    {23, "IQ4_XS", 0, 0, nullptr},
    {24, "I8", 0, 0, nullptr},
    {25, "I16", 0, 0, nullptr},
    {26, "I32", 0, 0, nullptr},
    {27, "I64", 0, 0, nullptr},
    {28, "F64", 0, 0, nullptr},
    {29, "IQ1_M", 0, 0, nullptr},
    {34, "TQ1_0", 0, 0, nullptr},
    {35, "TQ2_0", 0, 0, nullptr},
    {39, "MXFP4", 0, 0, nullptr},
    {40, "NVFP4", 0, 0, nullptr},
};

// Types of values of keys.
enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kText = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// Bytes that a value has at least. 0: no such type.
int64_t LeastBytes(uint32_t type) {
  switch (type) {
    case kUint8:
    case kInt8:
    case kBool:
      return 1;
    case kUint16:
    case kInt16:
      return 2;
    case kUint32:
    case kInt32:
    case kFloat32:
      return 4;
    case kUint64:
    case kInt64:
    case kFloat64:
    case kText:
      return 8;
    default:
      return 0;
  }
}

int64_t AlignUp(int64_t offset, int64_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// ---- The header -------------------------------------------------------------

// Reads a header from front to end, through a window of it.
class HeaderReader {
 public:
  explicit HeaderReader(const RandomAccessFile& file)
      : file_(file), end_(std::min(file.size_bytes(), kMaxHeaderBytes)) {}

  int64_t position() const { return position_; }
  int64_t room() const { return end_ - position_; }

  // What is read next, for messages.
  void At(std::string what) { what_ = std::move(what); }

  // "path: what is wrong", with what is being read.
  std::string Message(absl::string_view wrong) const {
    return absl::StrCat(file_.path(), ": ", what_, " ", wrong);
  }
  absl::Status Error(absl::string_view wrong) const {
    return absl::InvalidArgumentError(Message(wrong));
  }

  template <class Bits>
  absl::StatusOr<Bits> Load() {
    unsigned char bytes[sizeof(Bits)];
    DELTAEDGE_RETURN_IF_ERROR(Read(sizeof(Bits), bytes));
    return LoadBits<Bits>(bytes);
  }

  absl::StatusOr<std::string> Text() {
    DELTAEDGE_ASSIGN_OR_RETURN(const uint64_t length, Load<uint64_t>());
    if (length > static_cast<uint64_t>(room())) return NoRoom(length);
    std::string text(length, '\0');
    DELTAEDGE_RETURN_IF_ERROR(Read(static_cast<int64_t>(length), text.data()));
    return text;
  }

  // A number of things of at least `least_bytes` each.
  absl::StatusOr<int64_t> Count(int64_t least_bytes) {
    DELTAEDGE_ASSIGN_OR_RETURN(const uint64_t count, Load<uint64_t>());
    if (count > static_cast<uint64_t>(room() / least_bytes)) {
      return Error(absl::StrCat("would have ", count, " entries, but only ",
                                room(), " bytes follow"));
    }
    return static_cast<int64_t>(count);
  }

  absl::StatusOr<Json> Value(uint32_t type) {
    if (type != kArray) return Scalar(type);
    DELTAEDGE_ASSIGN_OR_RETURN(const uint32_t item, Load<uint32_t>());
    if (item == kArray) {
      return absl::UnimplementedError(Message("holds arrays of arrays"));
    }
    if (LeastBytes(item) == 0) {
      return Error(absl::StrCat("holds values of the unknown type ", item));
    }
    DELTAEDGE_ASSIGN_OR_RETURN(const int64_t count, Count(LeastBytes(item)));
    array_values_ += count;
    if (array_values_ > kMaxArrayValues) {
      return Error(absl::StrCat("has ", count, " entries; all arrays may have ",
                                kMaxArrayValues, " together"));
    }
    Json array = Json::array();
    array.get_ref<Json::array_t&>().reserve(count);
    for (int64_t i = 0; i < count; ++i) {
      DELTAEDGE_ASSIGN_OR_RETURN(Json value, Scalar(item));
      array.push_back(std::move(value));
    }
    return array;
  }

 private:
  absl::Status NoRoom(uint64_t bytes) const {
    const std::string message = Message(absl::StrCat(
        "would take ", bytes, " bytes at byte ", position_, " of ", end_));
    return end_ == file_.size_bytes()
               ? absl::DataLossError(message + ", where the file ends")
               : absl::InvalidArgumentError(
                     message + ", the most that a header may have");
  }

  absl::Status Read(int64_t bytes, void* out) {
    if (bytes > room()) return NoRoom(bytes);
    char* to = static_cast<char*>(out);
    while (bytes > 0) {
      if (window_at_ == window_.size()) {
        constexpr int64_t kWindowBytes = 1 << 18;
        window_.resize(std::min(kWindowBytes, room()));
        window_at_ = 0;
        DELTAEDGE_RETURN_IF_ERROR(file_.Read(
            position_, static_cast<int64_t>(window_.size()), window_.data()));
      }
      const int64_t now =
          std::min(bytes, static_cast<int64_t>(window_.size() - window_at_));
      std::memcpy(to, window_.data() + window_at_, now);
      to += now;
      bytes -= now;
      window_at_ += now;
      position_ += now;
    }
    return absl::OkStatus();
  }

  template <class Bits, class Stored>
  absl::StatusOr<Json> Number() {
    DELTAEDGE_ASSIGN_OR_RETURN(const Bits bits, Load<Bits>());
    Stored value;
    std::memcpy(&value, &bits, sizeof(value));
    return Json(value);
  }

  absl::StatusOr<Json> Scalar(uint32_t type) {
    switch (type) {
      case kUint8:
        return Number<uint8_t, uint8_t>();
      case kInt8:
        return Number<uint8_t, int8_t>();
      case kUint16:
        return Number<uint16_t, uint16_t>();
      case kInt16:
        return Number<uint16_t, int16_t>();
      case kUint32:
        return Number<uint32_t, uint32_t>();
      case kInt32:
        return Number<uint32_t, int32_t>();
      case kUint64:
        return Number<uint64_t, uint64_t>();
      case kInt64:
        return Number<uint64_t, int64_t>();
      case kFloat32:
        return Number<uint32_t, float>();
      case kFloat64:
        return Number<uint64_t, double>();
      case kBool: {
        DELTAEDGE_ASSIGN_OR_RETURN(const uint8_t value, Load<uint8_t>());
        if (value > 1) {
          return Error(absl::StrCat("is ", static_cast<int>(value),
                                    ", which is neither false nor true"));
        }
        return Json(value == 1);
      }
      case kText: {
        DELTAEDGE_ASSIGN_OR_RETURN(std::string text, Text());
        return Json(std::move(text));
      }
      default:
        return Error(absl::StrCat("is of the unknown type ", type));
    }
  }

  const RandomAccessFile& file_;
  const int64_t end_;
  int64_t position_ = 0;
  std::vector<char> window_;
  size_t window_at_ = 0;  // Of `position_`.
  int64_t array_values_ = 0;
  std::string what_;
};

absl::Status ReadStart(HeaderReader* reader) {
  reader->At("the file");
  DELTAEDGE_ASSIGN_OR_RETURN(const uint32_t magic, reader->Load<uint32_t>());
  if (magic !=
      LoadBits<uint32_t>(reinterpret_cast<const unsigned char*>("GGUF"))) {
    return reader->Error(
        "does not begin with \"GGUF\"; a checkpoint is a folder or a GGUF "
        "file");
  }
  reader->At("the version");
  DELTAEDGE_ASSIGN_OR_RETURN(const uint32_t version, reader->Load<uint32_t>());
  if (version == 2 || version == 3) return absl::OkStatus();
  return absl::UnimplementedError(reader->Message(
      version != 0 && (version & 0xFFFF) == 0
          ? "is big-endian; only little-endian files are supported"
          : absl::StrCat("is ", version, "; 2 and 3 are supported")));
}

absl::StatusOr<Json> ReadKeys(int64_t keys, HeaderReader* reader) {
  Json metadata = Json::object();
  for (int64_t i = 0; i < keys; ++i) {
    reader->At(absl::StrCat("key ", i + 1, " of ", keys));
    DELTAEDGE_ASSIGN_OR_RETURN(std::string key, reader->Text());
    reader->At(absl::StrCat("key ", QuotedName(key)));
    DELTAEDGE_ASSIGN_OR_RETURN(const uint32_t type, reader->Load<uint32_t>());
    DELTAEDGE_ASSIGN_OR_RETURN(Json value, reader->Value(type));
    if (!metadata.emplace(std::move(key), std::move(value)).second) {
      return reader->Error("occurs twice");
    }
  }
  return metadata;
}

// One tensor's description; its offset is from the first byte of the data.
absl::StatusOr<SourceTensor> ReadTensor(int64_t alignment,
                                        HeaderReader* reader) {
  SourceTensor tensor;
  DELTAEDGE_ASSIGN_OR_RETURN(const uint32_t rank, reader->Load<uint32_t>());
  if (rank > kMaxRank) {
    return reader->Error(absl::StrCat("has ", rank, " dimensions; at most ",
                                      kMaxRank, " are allowed"));
  }
  bool fits = true;
  tensor.elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    DELTAEDGE_ASSIGN_OR_RETURN(const uint64_t extent, reader->Load<uint64_t>());
    if (extent == 0 || extent > static_cast<uint64_t>(INT64_MAX)) {
      return reader->Error(absl::StrCat("has an extent of ", extent));
    }
    tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(extent));
    fits = fits && !__builtin_mul_overflow(tensor.elements, tensor.shape[0],
                                           &tensor.elements);
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const uint32_t id, reader->Load<uint32_t>());
  const auto* const type =
      std::find_if(std::begin(kTypes), std::end(kTypes),
                   [id](const TypeInfo& info) { return info.id == id; });
  if (type == std::end(kTypes)) {
    return reader->Error(absl::StrCat("is of the unknown type ", id));
  }
  if (type->decode == nullptr) {
    return absl::UnimplementedError(reader->Message(
        absl::StrCat("is of type ", type->name,
                     "; supported are F32, F16, BF16, Q8_0 and Q4_0")));
  }
  tensor.dtype = type->name;
  tensor.is_float = true;
  tensor.is_quantised = type->block > 1;
  if (fits && type->block > 1 &&
      (rank == 0 || tensor.shape.back() % type->block != 0)) {
    return reader->Error(absl::StrCat(
        "of type ", type->name, " has shape ", ShapeText(tensor.shape),
        "; its rows must be multiples of ", type->block));
  }
  fits = fits && !__builtin_mul_overflow(tensor.elements / type->block,
                                         type->block_bytes, &tensor.bytes);
  if (!fits) {
    return reader->Error(absl::StrCat("of shape ", ShapeText(tensor.shape),
                                      " has more bytes than can be counted"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(const uint64_t offset, reader->Load<uint64_t>());
  if (offset > static_cast<uint64_t>(INT64_MAX) ||
      static_cast<int64_t>(offset) % alignment != 0) {
    return reader->Error(absl::StrCat("begins at data byte ", offset,
                                      ", which is no multiple of ", alignment));
  }
  tensor.offset = static_cast<int64_t>(offset);
  return tensor;
}

absl::StatusOr<int64_t> ReadAlignment(const Json& metadata,
                                      const std::string& path) {
  constexpr int64_t kDefault = 32;
  const auto found = metadata.find(kAlignment);
  if (found == metadata.end()) return kDefault;
  const bool sound = found->is_number_unsigned() &&
                     found->get<uint64_t>() <= kMaxAlignment &&
                     found->get<int64_t>() > 0 &&
                     (found->get<int64_t>() & (found->get<int64_t>() - 1)) == 0;
  if (!sound) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", kAlignment, " is ", ShortJson(*found),
                     "; a power of two up to ", kMaxAlignment, " is expected"));
  }
  return found->get<int64_t>();
}

// Tensors follow each other, in whatever order, with nothing between them but
// what aligns them.
absl::Status CheckCover(const TensorSource::Entries& entries, int64_t alignment,
                        int64_t data_bytes, const std::string& path) {
  std::vector<const TensorSource::Entries::value_type*> by_offset;
  by_offset.reserve(entries.size());
  for (const auto& item : entries) by_offset.push_back(&item);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const auto* a, const auto* b) {
              return a->second.offset < b->second.offset;
            });
  int64_t covered = 0;
  for (const auto* item : by_offset) {
    const SourceTensor& tensor = item->second;
    const std::string name =
        absl::StrCat(path, ": tensor ", QuotedName(item->first));
    if (tensor.offset > data_bytes ||
        tensor.bytes > data_bytes - tensor.offset) {
      return absl::DataLossError(absl::StrCat(
          name, " has ", tensor.bytes, " bytes from data byte ", tensor.offset,
          " on, but the file has ", data_bytes, " of them"));
    }
    const int64_t expected = AlignUp(covered, alignment);
    if (tensor.offset != expected) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " begins at data byte ", tensor.offset,
                       "; behind the tensor before it that is ", expected));
    }
    covered = tensor.offset + tensor.bytes;
  }
  if (data_bytes - covered >= alignment) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", data_bytes - covered, " bytes behind its last tensor"));
  }
  return absl::OkStatus();
}

// "split.count" and the like. -1: absent.
absl::StatusOr<int64_t> SplitKey(const Json& metadata, const char* key,
                                 const std::string& path) {
  const auto found = metadata.find(key);
  if (found == metadata.end()) return -1;
  if (!found->is_number_integer() || found->get<int64_t>() < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": ", key, " is ", ShortJson(*found), "; a count is expected"));
  }
  return found->get<int64_t>();
}

// A part of a split file has keys of its own about itself alone; of the model,
// the first part says all.
absl::Status CheckPartKeys(const Json& part, const std::string& path,
                           const Json& first, const std::string& first_path) {
  for (const auto& [key, value] : part.items()) {
    if (key == kSplitNo || key == kSplitCount || key == kAlignment) continue;
    const auto found = first.find(key);
    if (found != first.end() && *found == value) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", QuotedName(key), " is ", ShortJson(value),
                     "; in ", first_path, ", the first part, it is ",
                     found == first.end() ? "absent" : ShortJson(*found)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Gguf::AddFile(const std::string& path, Json* metadata) {
  DELTAEDGE_ASSIGN_OR_RETURN(RandomAccessFile file,
                             RandomAccessFile::Open(path));
  HeaderReader reader(file);
  DELTAEDGE_RETURN_IF_ERROR(ReadStart(&reader));
  reader.At("the list of tensors");
  // A name's length, rank, type and offset; a key's length, type and value.
  DELTAEDGE_ASSIGN_OR_RETURN(const int64_t tensors, reader.Count(24));
  reader.At("the list of keys");
  DELTAEDGE_ASSIGN_OR_RETURN(const int64_t keys, reader.Count(13));
  if (keys > kMaxKeys || tensors > kMaxTensors) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": has ", keys, " keys and ", tensors, " tensors; at most ",
        kMaxKeys, " and ", kMaxTensors, " are allowed"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(*metadata, ReadKeys(keys, &reader));
  DELTAEDGE_ASSIGN_OR_RETURN(const int64_t alignment,
                             ReadAlignment(*metadata, path));
  Entries entries;
  for (int64_t i = 0; i < tensors; ++i) {
    reader.At(absl::StrCat("tensor ", i + 1, " of ", tensors));
    DELTAEDGE_ASSIGN_OR_RETURN(std::string name, reader.Text());
    reader.At(absl::StrCat("tensor ", QuotedName(name)));
    DELTAEDGE_ASSIGN_OR_RETURN(SourceTensor tensor,
                               ReadTensor(alignment, &reader));
    tensor.file = static_cast<int32_t>(files_.size());
    if (Find(name) != nullptr ||
        !entries.emplace(std::move(name), std::move(tensor)).second) {
      return reader.Error("occurs twice");
    }
  }
  const int64_t data_begin = AlignUp(reader.position(), alignment);
  DELTAEDGE_RETURN_IF_ERROR(
      CheckCover(entries, alignment,
                 std::max<int64_t>(file.size_bytes() - data_begin, 0), path));
  for (auto& [name, tensor] : entries) {
    tensor.offset += data_begin;
    entries_.emplace(name, std::move(tensor));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status Gguf::AddOtherParts() {
  const std::string first = files_[0].path();
  DELTAEDGE_ASSIGN_OR_RETURN(const int64_t said,
                             SplitKey(metadata_, kSplitCount, first));
  const int64_t count = std::max<int64_t>(said, 1);
  DELTAEDGE_ASSIGN_OR_RETURN(const int64_t tensors,
                             SplitKey(metadata_, "split.tensors.count", first));
  const std::string end = absl::StrFormat("-00001-of-%05d.gguf", count);
  if (count > kMaxParts || (count > 1 && !absl::EndsWith(first, end))) {
    return absl::InvalidArgumentError(absl::StrCat(
        first, ": ", kSplitCount, " is ", count, "; the first part is needed, ",
        "whose name ends in ", end, ", and there may be ", kMaxParts));
  }
  for (int64_t part = 0; part < count; ++part) {
    std::string path = first;
    Json other;
    if (part > 0) {
      path =
          absl::StrCat(absl::StripSuffix(first, end),
                       absl::StrFormat("-%05d-of-%05d.gguf", part + 1, count));
      DELTAEDGE_RETURN_IF_ERROR(AddFile(path, &other));
      DELTAEDGE_RETURN_IF_ERROR(CheckPartKeys(other, path, metadata_, first));
    }
    const Json& metadata = part > 0 ? other : metadata_;
    DELTAEDGE_ASSIGN_OR_RETURN(const int64_t number,
                               SplitKey(metadata, kSplitNo, path));
    DELTAEDGE_ASSIGN_OR_RETURN(const int64_t parts,
                               SplitKey(metadata, kSplitCount, path));
    // A file of one part need not say so.
    const bool in_order = number == part || (number < 0 && count == 1);
    if (!in_order || parts != said) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": ", kSplitNo, " is ", number, " and ", kSplitCount, " ",
          parts, "; ", part, " and ", count, " are expected"));
    }
  }
  if (tensors >= 0 && tensors != static_cast<int64_t>(entries_.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(first, ": split.tensors.count is ", tensors,
                     ", but all parts have ", entries_.size(), " tensors"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Gguf> Gguf::Open(const std::string& path) {
  Gguf gguf;
  DELTAEDGE_RETURN_IF_ERROR(gguf.AddFile(path, &gguf.metadata_));
  DELTAEDGE_RETURN_IF_ERROR(gguf.AddOtherParts());
  return gguf;
}

absl::Status Gguf::ReadFloats(const SourceTensor& entry, int64_t first,
                              absl::Span<float> out) const {
  const auto* const type = std::find_if(
      std::begin(kTypes), std::end(kTypes),
      [&](const TypeInfo& info) { return entry.dtype == info.name; });
  const auto count = static_cast<int64_t>(out.size());
  DELTAEDGE_RETURN_IF_ERROR(CheckRange(entry, first, count));
  const int64_t end = first + count;
  const int64_t block = type->block;
  const int64_t piece_blocks = (int64_t{1} << 14) / block;
  std::vector<unsigned char> bytes(piece_blocks * type->block_bytes);
  std::vector<float> values(piece_blocks * block);
  while (first < end) {
    const int64_t from = first / block;
    const int64_t blocks =
        std::min(piece_blocks, (end + block - 1) / block - from);
    DELTAEDGE_RETURN_IF_ERROR(
        files_[entry.file].Read(entry.offset + from * type->block_bytes,
                                blocks * type->block_bytes, bytes.data()));
    type->decode(bytes.data(), blocks, values.data());
    const int64_t stop = std::min(end, (from + blocks) * block);
    std::copy(values.begin() + (first - from * block),
              values.begin() + (stop - from * block),
              out.end() - (end - first));
    first = stop;
  }
  return absl::OkStatus();
}

}  // namespace deltaedge
