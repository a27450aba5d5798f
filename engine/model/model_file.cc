// SPDX-License-Identifier: Apache-2.0

#include "engine/model/model_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/crc/crc32c.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/checked_math.h"
#include "engine/base/mmap_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "schema/header.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Weights are used as they lie in the file: little-endian machines only."
#endif

namespace deltaedge {
namespace {

// Less than this is as well touched as copied.
constexpr int64_t kLargeTableBytes = int64_t{16} << 20;

absl::Status WithPath(const absl::Status& status, absl::string_view path) {
  return absl::Status(status.code(),
                      absl::StrCat("'", path, "': ", status.message()));
}

// What a file without our magic looks like to be; empty if that is anyone's
// guess.
absl::string_view ForeignKind(absl::string_view head) {
  const auto starts_with = [head](absl::string_view magic) {
    return head.substr(0, magic.size()) == magic;
  };
  if (starts_with("GGUF")) return "a GGUF file";
  if (starts_with("PK\x03\x04")) return "a zip archive or PyTorch file";
  if (starts_with("\x80\x02") || starts_with("\x80\x04")) {
    return "a Python pickle";
  }
  if (starts_with("\x89HDF")) return "an HDF5 file";
  if (starts_with("version https://git-lfs")) return "a git-lfs pointer";
  if (head.size() >= 8 && head.substr(4, 4) == "TFL3") {
    return "a TensorFlow Lite file";
  }
  // The length of the JSON text, then the text.
  if (head.size() >= 10 && head[8] == '{' && head[6] == 0 && head[7] == 0) {
    return "a safetensors file, which must be converted first";
  }
  if (starts_with("{")) return "a JSON file";
  return "";
}

absl::Status NotOurs(absl::string_view head) {
  const absl::string_view kind = ForeignKind(head);
  return absl::InvalidArgumentError(
      kind.empty() ? std::string("not a DeltaEdge model file")
                   : absl::StrCat("not a DeltaEdge model file but ", kind));
}

absl::Status CheckZeros(absl::string_view padding, int64_t position) {
  const size_t at = padding.find_first_not_of('\0');
  if (at == absl::string_view::npos) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("byte ", position + static_cast<int64_t>(at),
                   " of the file is damaged: padding must be zero"));
}

struct Layout {
  uint32_t index_checksum = 0;
  int64_t index_bytes = 0;
  int64_t first_segment = 0;
  int64_t segment_bytes = 0;
};

// The header, and that index and segments fill the file without gap or rest.
absl::StatusOr<Layout> ReadHeader(absl::string_view file) {
  if (file.size() < schema::kHeaderBytes) {
    const absl::string_view magic(schema::kMagic, sizeof(schema::kMagic));
    const size_t common = std::min(file.size(), magic.size());
    if (file.substr(0, common) != magic.substr(0, common)) {
      return NotOurs(file);
    }
    return absl::DataLossError(
        absl::StrCat("the file was cut short: it has ", file.size(),
                     " bytes, its header alone ", schema::kHeaderBytes));
  }
  schema::FileHeader header;
  const auto* bytes = reinterpret_cast<const uint8_t*>(file.data());
  switch (schema::ParseHeader(bytes, &header)) {
    case schema::HeaderResult::kOk:
      break;
    case schema::HeaderResult::kNotOurs:
      return NotOurs(file);
    case schema::HeaderResult::kNewerVersion:
      return absl::UnimplementedError(
          "the file's layout needs a newer version of this library");
    case schema::HeaderResult::kDamaged:
      return absl::DataLossError("the header is damaged");
  }
  if (header.index_bytes == 0 || header.index_bytes > schema::kMaxIndexBytes) {
    return absl::DataLossError(
        absl::StrCat("the header is damaged: an index of ", header.index_bytes,
                     " bytes, allowed are 1 to ", schema::kMaxIndexBytes));
  }
  Layout layout;
  layout.index_bytes = static_cast<int64_t>(header.index_bytes);
  layout.first_segment =
      *CheckedRoundUp(schema::kHeaderBytes + layout.index_bytes,
                      schema::kFirstSegmentAlignment);
  if (header.first_segment != static_cast<uint64_t>(layout.first_segment)) {
    return absl::DataLossError(absl::StrCat(
        "the header is damaged: the first segment at ", header.first_segment,
        ", behind an index of ", layout.index_bytes, " bytes it lies at ",
        layout.first_segment));
  }
  if (file.size() < header.first_segment ||
      file.size() - header.first_segment != header.segment_bytes) {
    const bool is_short =
        file.size() < header.first_segment ||
        file.size() - header.first_segment < header.segment_bytes;
    return absl::DataLossError(absl::StrCat(
        is_short ? "the file was cut short"
                 : "there is something behind the end of the model",
        ": it has ", file.size(), " bytes, its header tells of ",
        header.first_segment, " and ", header.segment_bytes, " more"));
  }
  layout.segment_bytes = static_cast<int64_t>(header.segment_bytes);

  absl::crc32c_t checksum =
      absl::ComputeCrc32c(file.substr(0, schema::kIndexChecksumOffset));
  checksum = absl::ExtendCrc32c(
      checksum, file.substr(schema::kHeaderBytes, header.index_bytes));
  if (static_cast<uint32_t>(checksum) != header.index_checksum) {
    return absl::DataLossError(absl::StrFormat(
        "header or index is damaged: checksum %08x, the header tells of %08x",
        static_cast<uint32_t>(checksum), header.index_checksum));
  }
  layout.index_checksum = header.index_checksum;
  return layout;
}

}  // namespace

absl::string_view ModelKindName(ModelKind kind) {
  return kind == ModelKind::kTarget ? "target" : "draft";
}

absl::StatusOr<std::unique_ptr<ModelFile>> ModelFile::Open(
    const std::string& path, Verify verify) {
  DELTAEDGE_ASSIGN_OR_RETURN(MmapFile file, MmapFile::Open(path));
  auto model = absl::WrapUnique(new ModelFile(path, std::move(file)));
  const absl::Status status = model->Load(verify);
  if (!status.ok()) return WithPath(status, path);
  return model;
}

absl::Status ModelFile::Load(Verify verify) {
  const absl::string_view file(reinterpret_cast<const char*>(file_.data()),
                               static_cast<size_t>(file_.size()));
  DELTAEDGE_ASSIGN_OR_RETURN(const Layout layout, ReadHeader(file));
  index_checksum_ = layout.index_checksum;

  // A copy, so that what was verified is what is read, even if somebody writes
  // to the file meanwhile.
  DELTAEDGE_ASSIGN_OR_RETURN(
      AlignedBuffer bytes,
      AlignedBuffer::Allocate(layout.index_bytes, "the model file's index"));
  std::memcpy(bytes.data(), file.data() + schema::kHeaderBytes,
              static_cast<size_t>(layout.index_bytes));
  DELTAEDGE_ASSIGN_OR_RETURN(index_,
                             ParseIndex(absl::MakeConstSpan(
                                 reinterpret_cast<const uint8_t*>(bytes.data()),
                                 static_cast<size_t>(layout.index_bytes))));
  const absl::Status status = CheckIndex(index_, layout.segment_bytes);
  if (!status.ok()) {
    return absl::DataLossError(
        absl::StrCat("the model is unsound: ", status.message()));
  }
  BindWeights(layout.first_segment);
  if (verify == Verify::kChecksums) {
    DELTAEDGE_RETURN_IF_ERROR(CheckContents(
        schema::kHeaderBytes + layout.index_bytes, layout.first_segment));
  }
  return CopyVectors();
}

std::vector<WeightType> ModelFile::weight_types() const {
  std::set<WeightType> types;
  for (const TensorEntry& tensor : tensors()) types.insert(tensor.type);
  return {types.begin(), types.end()};
}

std::string ModelFile::identity() const {
  return absl::StrFormat("%08x %d", index_checksum_, file_.size());
}

std::vector<TensorSlot> ModelFile::Slots() {
  return kind() == Kind::kTarget
             ? TensorSlots(index_.contents.target, &target_weights_)
             : TensorSlots(index_.contents.draft, &draft_weights_);
}

void ModelFile::BindWeights(int64_t first_segment) {
  const std::byte* const segments = file_.data() + first_segment;
  absl::flat_hash_map<absl::string_view, const TensorEntry*> by_name;
  for (const TensorEntry& tensor : index_.tensors) {
    by_name.emplace(tensor.name, &tensor);
    weight_bytes_ += tensor.size_bytes;
  }
  for (const TensorSlot& slot : Slots()) {
    const TensorEntry& tensor = *by_name.at(slot.name);
    const std::byte* const data = segments + tensor.offset_bytes;
    if (slot.matrix != nullptr) {
      const TensorLayout layout = *LayoutOf(tensor.type, tensor.shape);
      *slot.matrix = MatrixView{
          data, tensor.type, tensor.shape[0], tensor.shape[1],
          layout.scale_bytes == 0 ? nullptr : data + layout.scale_offset};
    } else {
      *slot.vector = reinterpret_cast<const float*>(data);
    }
  }
  if (index_.contents.target.tied_head) {
    target_weights_.head = target_weights_.embedding;
  }
  if (kind() == Kind::kTarget &&
      by_name.at("embedding")->size_bytes >= kLargeTableBytes) {
    target_weights_.embedding_file = &file_;
  }
}

absl::Status ModelFile::CopyVectors() {
  const std::vector<TensorSlot> slots = Slots();
  const auto size = [](const TensorSlot& slot) {
    return TensorBytes(WeightType::kF32, slot.shape).value_or(0);
  };
  int64_t end = 0;
  for (const TensorSlot& slot : slots) {
    if (slot.vector == nullptr) continue;
    end = *CheckedRoundUp(end + size(slot), AlignedBuffer::kAlignment);
  }
  DELTAEDGE_ASSIGN_OR_RETURN(vectors_,
                             AlignedBuffer::Allocate(end, "small tensors"));
  end = 0;
  for (const TensorSlot& slot : slots) {
    if (slot.vector == nullptr) continue;
    std::byte* const copy = vectors_.data() + end;
    file_.Copy(*slot.vector, static_cast<size_t>(size(slot)), copy);
    *slot.vector = reinterpret_cast<const float*>(copy);
    end = *CheckedRoundUp(end + size(slot), AlignedBuffer::kAlignment);
  }
  return absl::OkStatus();
}

absl::Status ModelFile::CheckContents(int64_t index_end,
                                      int64_t first_segment) const {
  const absl::string_view file(reinterpret_cast<const char*>(file_.data()),
                               static_cast<size_t>(file_.size()));
  std::vector<const TensorEntry*> by_offset;
  for (const TensorEntry& tensor : index_.tensors) by_offset.push_back(&tensor);
  std::sort(by_offset.begin(), by_offset.end(),
            [](const TensorEntry* a, const TensorEntry* b) {
              return a->offset_bytes < b->offset_bytes;
            });
  int64_t end = index_end;
  for (const TensorEntry* tensor : by_offset) {
    const int64_t begin = first_segment + tensor->offset_bytes;
    DELTAEDGE_RETURN_IF_ERROR(CheckZeros(file.substr(end, begin - end), end));
    const auto checksum = static_cast<uint32_t>(
        absl::ComputeCrc32c(file.substr(begin, tensor->size_bytes)));
    if (checksum != tensor->checksum) {
      return absl::DataLossError(absl::StrFormat(
          "tensor '%s' is damaged: checksum %08x, the index tells of %08x",
          tensor->name, checksum, tensor->checksum));
    }
    const TensorLayout layout = *LayoutOf(tensor->type, tensor->shape);
    const absl::Status scales = CheckScales(
        tensor->type,
        absl::MakeConstSpan(file_.data() + begin, tensor->size_bytes)
            .subspan(layout.scale_offset, layout.scale_bytes));
    if (!scales.ok()) {
      return absl::DataLossError(
          absl::StrCat("tensor '", tensor->name, "': ", scales.message()));
    }
    end = begin + tensor->size_bytes;
  }
  return CheckZeros(file.substr(end), end);
}

absl::Status CheckPair(const ModelFile& target, const ModelFile& draft) {
  for (const auto& [file, kind] : {std::pair(&target, ModelKind::kTarget),
                                   std::pair(&draft, ModelKind::kDraft)}) {
    if (file->kind() != kind) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", file->path(), "' is a ", ModelKindName(file->kind()),
          " model, not a ", ModelKindName(kind)));
    }
  }
  const std::string pair = absl::StrCat(
      "draft '", draft.path(), "' does not fit target '", target.path(), "': ");
  // Sizes first: they tell more than a fingerprint does.
  const absl::Status sizes =
      ValidatePair(target.target_config(), draft.draft_config());
  if (!sizes.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(pair, sizes.message()));
  }
  if (draft.target_fingerprint() != target.fingerprint()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%sit was made for fingerprint %016x, the target's is %016x", pair,
        draft.target_fingerprint(), target.fingerprint()));
  }
  return absl::OkStatus();
}

}  // namespace deltaedge
