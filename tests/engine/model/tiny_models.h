// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_ENGINE_MODEL_TINY_MODELS_H_
#define DELTAEDGE_TESTS_ENGINE_MODEL_TINY_MODELS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"

namespace deltaedge {
namespace testing {

// The smallest sound models that show every table of the schema. They are the
// example of schema/FORMAT.md and the files in tests/testdata/model: do not
// change them.

// One gated delta layer, one attention layer, a tokenizer, a chat table.
ModelContents TinyTarget();
inline constexpr uint64_t kTinyTargetFingerprint = 0x0123456789abcdef;

// One layer that sees all, one with a window.
ModelContents TinyDraft();
inline constexpr uint64_t kTinyDraftFingerprint = 0xfedcba9876543210;

// TinyTarget() with H = 32.
ModelContents TinyWideTarget();
inline constexpr uint64_t kTinyWideFingerprint = 0x02468ace13579bdf;

// TinyWideTarget() with three experts in the first layer, of which a token
// chooses two.
ModelContents TinyMoeTarget();
inline constexpr uint64_t kTinyMoeFingerprint = 0x13579bdf02468ace;

// All kF32.
std::vector<TensorSpec> Specs(const ModelContents& contents);

// For TinyWideTarget() and TinyMoeTarget(): types of every kind, kQ4 where the
// columns allow it.
std::vector<TensorSpec> QuantisedSpecs(const ModelContents& contents);

// Element `i` of the tensor announced as number `tensor`: tensor + i / 16,
// which a float holds exactly.
std::vector<float> TinyValues(size_t tensor, const TensorSpec& spec);

// The parts of tensor number `tensor` of any type: kF32, TinyValues(). Else
// byte i of the numbers is 37 * (tensor + i), and scale i is (1 + i % 100)
// / 64.
struct TinyParts {
  std::string numbers, scales;
};
TinyParts TinyBytes(size_t tensor, const TensorSpec& spec);

// Writes the model with those values.
absl::Status WriteTinyModel(const std::string& path,
                            const ModelContents& contents,
                            const std::vector<TensorSpec>& specs,
                            uint64_t fingerprint);
absl::Status WriteTinyModel(const std::string& path,
                            const ModelContents& contents,
                            uint64_t fingerprint);

// An index as a writer would make it, with segments placed one after another.
ModelIndex PlacedIndex(const ModelContents& contents,
                       const std::vector<TensorSpec>& specs,
                       uint64_t fingerprint);
ModelIndex PlacedIndex(const ModelContents& contents, uint64_t fingerprint);

// Bytes of all segments of an index made by PlacedIndex().
int64_t SegmentBytes(const ModelIndex& index);

// Header and index of a file, padded up to its first segment. Does not look at
// whether `index` is sound.
std::string HeaderAndIndex(const std::string& index, int64_t segment_bytes);

// Makes the header's checksum true again after a change to header or index.
// Does nothing if the file is too short for what its header says.
void Reseal(std::string* file);

// A path in the test's own temporary folder.
std::string TempPath(const std::string& name);

// Both end the test with a message if the file system does not do its part.
std::string ReadFile(const std::string& path);
void WriteFile(const std::string& path, const std::string& bytes);

}  // namespace testing
}  // namespace deltaedge

#endif  // DELTAEDGE_TESTS_ENGINE_MODEL_TINY_MODELS_H_
