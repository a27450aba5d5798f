// SPDX-License-Identifier: Apache-2.0

#include "engine/model/model_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/crc/crc32c.h"
#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/base/checked_math.h"
#include "engine/base/partial_file.h"
#include "engine/base/status_macros.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "schema/header.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Weights are written as they lie in memory: little-endian machines only."
#endif

namespace deltaedge {
namespace {

// Gives a new file its size; an errno, or 0. Where the system can, with all of
// its room on the disk: one that is too full is noticed here and not when most
// of a large model has been written.
int MakeRoom(int file, int64_t bytes) {
#ifdef __linux__
  for (;;) {
    if (fallocate(file, 0, 0, bytes) == 0) return 0;
    if (errno == EOPNOTSUPP || errno == ENOSYS) break;
    if (errno != EINTR) return errno;
  }
#endif
  return ftruncate(file, bytes) == 0 ? 0 : errno;
}

}  // namespace

ModelWriter::ModelWriter(std::string path, ModelContents contents,
                         std::vector<TensorSpec> tensors)
    : path_(std::move(path)),
      tensors_(std::move(tensors)),
      progress_(tensors_.size()) {
  index_.contents = std::move(contents);
}

ModelWriter::~ModelWriter() {
  if (file_ < 0) return;
  close(file_);
  unlink(temporary_path_.c_str());
}

absl::StatusOr<std::unique_ptr<ModelWriter>> ModelWriter::Create(
    const std::string& path, ModelContents contents,
    std::vector<TensorSpec> tensors) {
  auto writer = absl::WrapUnique(
      new ModelWriter(path, std::move(contents), std::move(tensors)));
  const absl::Status placed = writer->PlaceSegments();
  if (!placed.ok()) {
    return absl::Status(placed.code(), absl::StrCat("cannot write '", path,
                                                    "': ", placed.message()));
  }
  DELTAEDGE_RETURN_IF_ERROR(writer->OpenTemporary());
  return writer;
}

absl::Status ModelWriter::PlaceSegments() {
  int64_t end = 0;
  for (const TensorSpec& spec : tensors_) {
    TensorEntry entry;
    entry.name = spec.name;
    entry.type = spec.type;
    entry.shape = spec.shape;
    // Of an unsound tensor nothing is known; CheckIndex() tells what is wrong.
    TensorLayout& layout = progress_[index_.tensors.size()].layout;
    layout = LayoutOf(spec.type, spec.shape).value_or(TensorLayout());
    entry.size_bytes = layout.size_bytes();
    entry.offset_bytes = end;
    const std::optional<int64_t> sum = CheckedAdd(end, entry.size_bytes);
    const std::optional<int64_t> next =
        sum ? CheckedRoundUp(*sum, schema::kSegmentAlignment) : std::nullopt;
    if (!next.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", spec.name, "', ", ShapeText(spec.shape), ", is too big"));
    }
    end = *next;
    position_of_.emplace(spec.name, index_.tensors.size());
    index_.tensors.push_back(std::move(entry));
  }
  segment_bytes_ = end;
  DELTAEDGE_RETURN_IF_ERROR(CheckIndex(index_, segment_bytes_));
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string bytes, SerializeIndex(index_));
  index_bytes_ = static_cast<int64_t>(bytes.size());
  first_segment_ = *CheckedRoundUp(schema::kHeaderBytes + index_bytes_,
                                   schema::kFirstSegmentAlignment);
  if (!CheckedAdd(first_segment_, segment_bytes_).has_value()) {
    return absl::InvalidArgumentError("the tensors are too big for any file");
  }
  return absl::OkStatus();
}

absl::Status ModelWriter::OpenTemporary() {
  if (path_.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the path of a file must not hold a zero byte: '", path_.c_str(), "'"));
  }
  struct stat info;
  if (path_.empty() || path_.back() == '/' ||
      (stat(path_.c_str(), &info) == 0 && !S_ISREG(info.st_mode))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot write '", path_, "': it is a folder or no regular file"));
  }
  DELTAEDGE_ASSIGN_OR_RETURN(file_, CreatePartialFile(path_, &temporary_path_));
  const int error = MakeRoom(file_, file_bytes());
  return error == 0 ? absl::OkStatus() : SystemError(error, "make room in");
}

absl::Status ModelWriter::Begin(absl::string_view name) {
  if (current_ >= 0) DELTAEDGE_RETURN_IF_ERROR(CheckComplete(current_));
  const auto it = position_of_.find(name);
  if (it == position_of_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "' of '", path_, "' is not announced"));
  }
  const Progress& progress = progress_[it->second];
  if (progress.numbers.bytes != 0 || progress.scales.bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", name, "' of '", path_, "' is written twice"));
  }
  current_ = static_cast<ptrdiff_t>(it->second);
  return absl::OkStatus();
}

absl::Status ModelWriter::AppendPart(absl::Span<const std::byte> bytes,
                                     bool is_scales) {
  if (file_ < 0 || current_ < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no tensor of '", path_, "' was begun"));
  }
  const TensorEntry& tensor = index_.tensors[current_];
  Progress& progress = progress_[current_];
  const TensorLayout& layout = progress.layout;
  Part& part = is_scales ? progress.scales : progress.numbers;
  const int64_t most = is_scales ? layout.scale_bytes : layout.number_bytes;
  if (bytes.size() > static_cast<uint64_t>(most - part.bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", tensor.name, "' of '", path_, "' has ", most,
                     " bytes of ", is_scales ? "scales" : "numbers", ", but ",
                     part.bytes, " and ", bytes.size(), " are given"));
  }
  DELTAEDGE_RETURN_IF_ERROR(WriteAt(first_segment_ + tensor.offset_bytes +
                                        (is_scales ? layout.scale_offset : 0) +
                                        part.bytes,
                                    bytes.data(), bytes.size()));
  part.checksum = static_cast<uint32_t>(absl::ExtendCrc32c(
      absl::crc32c_t{part.checksum},
      absl::string_view(reinterpret_cast<const char*>(bytes.data()),
                        bytes.size())));
  part.bytes += static_cast<int64_t>(bytes.size());
  return absl::OkStatus();
}

absl::Status ModelWriter::Append(absl::Span<const std::byte> bytes) {
  return AppendPart(bytes, /*is_scales=*/false);
}

absl::Status ModelWriter::Append(absl::Span<const float> values) {
  return Append(
      absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()),
                          values.size() * sizeof(float)));
}

absl::Status ModelWriter::AppendScales(absl::Span<const std::byte> bytes) {
  if (current_ >= 0) {
    const TensorEntry& tensor = index_.tensors[current_];
    const absl::Status status = CheckScales(tensor.type, bytes);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor '", tensor.name, "' of '", path_, "': ", status.message()));
    }
  }
  return AppendPart(bytes, /*is_scales=*/true);
}

absl::Status ModelWriter::CheckComplete(size_t i) const {
  const Progress& progress = progress_[i];
  const TensorLayout& layout = progress.layout;
  if (progress.numbers.bytes == layout.number_bytes &&
      progress.scales.bytes == layout.scale_bytes) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "tensor '", index_.tensors[i].name, "' of '", path_, "' has ",
      progress.numbers.bytes, " of its ", layout.number_bytes,
      " bytes of numbers, ", progress.scales.bytes, " of its ",
      layout.scale_bytes, " bytes of scales"));
}

absl::Status ModelWriter::Finish(uint64_t fingerprint) {
  if (file_ < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("'", path_, "' is finished"));
  }
  if (fingerprint == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the fingerprint of '", path_, "' is 0"));
  }
  for (size_t i = 0; i < index_.tensors.size(); ++i) {
    DELTAEDGE_RETURN_IF_ERROR(CheckComplete(i));
    const auto& [layout, numbers, scales] = progress_[i];
    const absl::crc32c_t padded = absl::ExtendCrc32cByZeroes(
        absl::crc32c_t{numbers.checksum},
        static_cast<size_t>(layout.scale_offset - layout.number_bytes));
    index_.tensors[i].checksum = static_cast<uint32_t>(
        absl::ConcatCrc32c(padded, absl::crc32c_t{scales.checksum},
                           static_cast<size_t>(layout.scale_bytes)));
  }
  index_.fingerprint = fingerprint;
  DELTAEDGE_ASSIGN_OR_RETURN(const std::string index, SerializeIndex(index_));
  if (static_cast<int64_t>(index.size()) != index_bytes_) {
    return absl::InternalError(absl::StrCat("the index of '", path_,
                                            "' grew from ", index_bytes_,
                                            " to ", index.size(), " bytes"));
  }

  schema::FileHeader header;
  header.index_bytes = static_cast<uint64_t>(index_bytes_);
  header.first_segment = static_cast<uint64_t>(first_segment_);
  header.segment_bytes = static_cast<uint64_t>(segment_bytes_);
  uint8_t head[schema::kHeaderBytes];
  schema::SerializeHeader(header, head);
  header.index_checksum = static_cast<uint32_t>(absl::ExtendCrc32c(
      absl::ComputeCrc32c(absl::string_view(reinterpret_cast<const char*>(head),
                                            schema::kIndexChecksumOffset)),
      index));
  schema::SerializeHeader(header, head);

  DELTAEDGE_RETURN_IF_ERROR(
      WriteAt(schema::kHeaderBytes, index.data(), index.size()));
  DELTAEDGE_RETURN_IF_ERROR(WriteAt(0, head, sizeof(head)));
  if (fsync(file_) != 0) return SystemError(errno, "write");
  if (std::rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    return SystemError(errno, "put into place");
  }
  close(file_);
  file_ = -1;
  return SyncFolder();
}

// Until the folder is on the disk as well, a crash may bring back the file that
// had the name before.
absl::Status ModelWriter::SyncFolder() const {
  const size_t slash = path_.rfind('/');
  const std::string folder =
      slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = file >= 0 && fsync(file) == 0;
  const int error = errno;
  if (file >= 0) close(file);
  // Not every file system can do that.
  if (synced || error == EINVAL) return absl::OkStatus();
  return SystemError(error, "make durable the name of");
}

absl::Status ModelWriter::WriteAt(int64_t position, const void* data,
                                  size_t bytes) {
  // Linux writes at most 2 GiB at a time.
  constexpr size_t kMost = size_t{1} << 30;
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = pwrite(file_, next, std::min(bytes, kMost), position);
    if (done < 0) {
      if (errno == EINTR) continue;
      return SystemError(errno, "write");
    }
    next += done;
    position += done;
    bytes -= static_cast<size_t>(done);
  }
  return absl::OkStatus();
}

absl::Status ModelWriter::SystemError(int error,
                                      absl::string_view action) const {
  return absl::ErrnoToStatus(
      error, absl::StrCat("cannot ", action, " '", temporary_path_, "' for '",
                          path_, "'"));
}

}  // namespace deltaedge
