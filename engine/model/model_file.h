// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_ENGINE_MODEL_MODEL_FILE_H_
#define DELTAEDGE_ENGINE_MODEL_MODEL_FILE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/base/aligned_buffer.h"
#include "engine/base/mmap_file.h"
#include "engine/model/chat_table.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/model/weights.h"
#include "engine/types.h"

namespace deltaedge {

// A model file (*.gdn, schema/FORMAT.md), opened and checked. Nothing above
// asks again whether a size or a pointer is sound.
//
// Config, tables and small tensors are copies; matrices are views of the mapped
// file, read from disk when first touched. Immutable after Open(), so every
// method may be called from any thread. The file may be replaced by renaming
// another over it, and must not be changed in place while it is open
// (engine/base/mmap_file.h).
class ModelFile {
 public:
  using Kind = ModelKind;

  // How much Open() looks at.
  enum class Verify {
    // Header and index, checksum included; of the segments only that they are
    // all there. Takes time in proportion to the vocabulary and the small
    // tensors, not to the matrices.
    kStructure,
    // Also every byte of every segment and of the padding, and that scales of
    // quantised matrices are positive normal numbers: reads the whole file.
    kChecksums,
  };

  // Errors name the path and what was wrong:
  //   NotFound, PermissionDenied  the file system said so;
  //   InvalidArgument    not a model file at all (says what it looks like, if
  //   it
  //                      is one of the well-known kinds), or a folder, a
  //                      device;
  //   DataLoss           cut short or damaged, or its tables contradict each
  //                      other;
  //   Unimplemented      sound, but made for a newer version of this library;
  //   ResourceExhausted  no memory, or no room in the address space.
  // Takes bounded time and memory, whatever the file holds.
  static absl::StatusOr<std::unique_ptr<ModelFile>> Open(
      const std::string& path, Verify verify = Verify::kStructure);

  ModelFile(const ModelFile&) = delete;
  ModelFile& operator=(const ModelFile&) = delete;

  Kind kind() const { return index_.contents.kind; }
  const std::string& path() const { return path_; }
  // Program and version that wrote the file; may be empty.
  const std::string& converter() const { return index_.contents.converter; }

  // Identity of the model; the same however its weights are quantised.
  uint64_t fingerprint() const { return index_.fingerprint; }
  // kDraft: the fingerprint of the target that it was made for. kTarget: 0.
  uint64_t target_fingerprint() const {
    return index_.contents.target_fingerprint;
  }

  // Bytes of all tensors in the file, padding not counted.
  int64_t weight_bytes() const { return weight_bytes_; }
  // As the index lists them.
  const std::vector<TensorEntry>& tensors() const { return index_.tensors; }
  // Theirs, each once.
  std::vector<WeightType> weight_types() const;

  // kTarget only; of a draft they are all zero and empty. Views point into the
  // file and live as long as this object.
  const TargetConfig& target_config() const { return index_.contents.target; }
  const TargetWeights& target_weights() const { return target_weights_; }
  // Unset: the model is used with ids alone.
  const std::optional<TokenizerTables>& tokenizer() const {
    return index_.contents.tokenizer;
  }
  // Unset: the model was not made for conversations. Set only with a tokenizer.
  const std::optional<ChatTable>& chat() const { return index_.contents.chat; }
  // Ids at which generation ends.
  const std::vector<TokenId>& stop_tokens() const {
    return index_.contents.stop_tokens;
  }

  // kDraft only; of a target they are all zero and empty.
  const DraftConfig& draft_config() const { return index_.contents.draft; }
  const DraftWeights& draft_weights() const { return draft_weights_; }

  // Names the contents: the checksum of the index, which holds those of all
  // tensors, and the size. For files that are made from this one.
  std::string identity() const;

  // Takes the weights' pages out of this process's resident memory, for after
  // they were packed elsewhere. The views stay valid: a later touch reads
  // again.
  void EvictWeights() const { file_.Evict(); }

 private:
  ModelFile(std::string path, MmapFile file)
      : path_(std::move(path)), file_(std::move(file)) {}

  // These do not know the path; Open() puts it before their messages.
  absl::Status Load(Verify verify);
  std::vector<TensorSlot> Slots();
  void BindWeights(int64_t first_segment);
  absl::Status CopyVectors();
  absl::Status CheckContents(int64_t index_end, int64_t first_segment) const;

  const std::string path_;
  const MmapFile file_;
  ModelIndex index_;
  TargetWeights target_weights_;
  DraftWeights draft_weights_;
  AlignedBuffer vectors_;
  int64_t weight_bytes_ = 0;
  uint32_t index_checksum_ = 0;
};

// "target" or "draft", for messages.
absl::string_view ModelKindName(ModelKind kind);

// Whether `draft` was made for `target`: kinds, fingerprint, ValidatePair().
// InvalidArgument names both files and what differs.
absl::Status CheckPair(const ModelFile& target, const ModelFile& draft);

}  // namespace deltaedge

#endif  // DELTAEDGE_ENGINE_MODEL_MODEL_FILE_H_
