// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_MODEL_WRITER_H_
#define DELTAEDGE_ENGINE_MODEL_MODEL_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"

namespace deltaedge {

// Writes a model file. Tensors are announced first and appended afterwards, one
// after another and each in as many pieces as the caller likes, so that no more
// than a piece is ever in memory:
//
//   DELTAEDGE_ASSIGN_OR_RETURN(
//       auto writer,
//       ModelWriter::Create(path, contents, TensorSpecs(contents.target)));
//   for (const TensorSpec& spec : writer->tensors()) {
//     DELTAEDGE_RETURN_IF_ERROR(writer->Begin(spec.name));
//     while (...) DELTAEDGE_RETURN_IF_ERROR(writer->Append(floats));
//   }
//   return writer->Finish(fingerprint);
//
// The bytes go to a temporary file beside `path`, which takes its place when
// Finish() succeeds: whoever opens `path` sees the old file or the whole new
// one. Without that, the destructor removes it, or else, if this process is
// killed, the next writer of `path` (partial_file.h). A file that this class
// writes, ModelFile opens; what ModelFile would refuse, this refuses.
//
// After an error a writer is of no more use; destroy it. Thread-compatible.
class ModelWriter {
 public:
  // Segments lie in the order of `tensors`. Errors name the file.
  // InvalidArgument: `contents` and `tensors` make no sound model (names the
  // field or tensor), or `path` is a folder or a device. NotFound,
  // PermissionDenied: the folder is not there or cannot be written.
  // ResourceExhausted: no room on the disk for the whole file, where the system
  // can tell beforehand, or tables beyond all measure. Else whatever
  // absl::ErrnoToStatus() makes of other answers of the system.
  static absl::StatusOr<std::unique_ptr<ModelWriter>> Create(
      const std::string& path, ModelContents contents,
      std::vector<TensorSpec> tensors);

  ~ModelWriter();
  ModelWriter(const ModelWriter&) = delete;
  ModelWriter& operator=(const ModelWriter&) = delete;

  // As announced.
  const std::vector<TensorSpec>& tensors() const { return tensors_; }

  // Starts the next tensor; any order will do. InvalidArgument: nobody
  // announced `name`, or it has been written. FailedPrecondition: the one
  // before is not complete.
  absl::Status Begin(absl::string_view name);

  // The next bytes of the tensor's numbers, row-major, as its type lays them
  // out. InvalidArgument: more than its shape holds. FailedPrecondition: no
  // Begin(). ResourceExhausted and others: the system could not write; names
  // the file.
  absl::Status Append(absl::Span<const std::byte> bytes);
  absl::Status Append(absl::Span<const float> values);

  // The next whole scales of a tensor of a type that has them, before, after or
  // between its numbers. Errors as Append; InvalidArgument also: one that is
  // not a positive normal number.
  absl::Status AppendScales(absl::Span<const std::byte> bytes);

  // Writes the index, makes all of it durable and puts the file in its place.
  // `fingerprint` is TargetFingerprint() or DraftFingerprint().
  // FailedPrecondition names the first tensor that is missing or incomplete.
  absl::Status Finish(uint64_t fingerprint);

  // Size of the whole file.
  int64_t file_bytes() const { return first_segment_ + segment_bytes_; }

 private:
  ModelWriter(std::string path, ModelContents contents,
              std::vector<TensorSpec> tensors);

  // What has been written of one of the two parts of a tensor.
  struct Part {
    int64_t bytes = 0;
    uint32_t checksum = 0;
  };
  struct Progress {
    TensorLayout layout;
    Part numbers, scales;
  };

  absl::Status PlaceSegments();
  absl::Status OpenTemporary();
  // FailedPrecondition unless both parts of tensor `i` are there.
  absl::Status CheckComplete(size_t i) const;
  absl::Status AppendPart(absl::Span<const std::byte> bytes, bool is_scales);
  absl::Status SyncFolder() const;
  absl::Status WriteAt(int64_t position, const void* data, size_t bytes);
  absl::Status SystemError(int error, absl::string_view action) const;

  const std::string path_;
  const std::vector<TensorSpec> tensors_;
  ModelIndex index_;
  absl::flat_hash_map<std::string, size_t> position_of_;  // In index_.tensors.
  std::vector<Progress> progress_;                        // Per tensor.
  int64_t index_bytes_ = 0;
  int64_t first_segment_ = 0;
  int64_t segment_bytes_ = 0;

  std::string temporary_path_;
  int file_ = -1;           // -1: none, or finished.
  ptrdiff_t current_ = -1;  // Tensor that Append() adds to; -1: none.
};

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_MODEL_WRITER_H_
