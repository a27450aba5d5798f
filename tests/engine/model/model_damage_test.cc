// SPDX-License-Identifier: Apache-2.0

// Case C24. Files that are cut short, flipped, forged or from the future: an
// error or a working model, never a crash, in bounded time and memory.

#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/crc/crc32c.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/model/config.h"
#include "engine/model/dequantise.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "flatbuffers/flatbuffers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schema/header.h"
#include "schema/model_generated.h"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::HeaderAndIndex;
using ::deltaedge::testing::PlacedIndex;
using ::deltaedge::testing::QuantisedSpecs;
using ::deltaedge::testing::ReadFile;
using ::deltaedge::testing::Reseal;
using ::deltaedge::testing::SegmentBytes;
using ::deltaedge::testing::Specs;
using ::deltaedge::testing::TempPath;
using ::deltaedge::testing::TinyDraft;
using ::deltaedge::testing::TinyMoeTarget;
using ::deltaedge::testing::TinyTarget;
using ::deltaedge::testing::TinyWideTarget;
using ::deltaedge::testing::WriteFile;
using ::deltaedge::testing::WriteTinyModel;
using ::testing::HasSubstr;

std::string TinyFile(const ModelContents& contents,
                     const std::vector<TensorSpec>& specs) {
  const std::string path = TempPath("sound.gdn");
  EXPECT_EQ(WriteTinyModel(path, contents, specs, 77), absl::OkStatus());
  return ReadFile(path);
}

std::string TinyFile(const ModelContents& contents) {
  return TinyFile(contents, Specs(contents));
}

std::string QuantisedFile() {
  return TinyFile(TinyWideTarget(), QuantisedSpecs(TinyWideTarget()));
}

float Touch(const MatrixView& matrix) {
  if (matrix.data == nullptr) return 0;
  std::vector<float> row(matrix.cols);
  DequantiseRow(matrix, 0, row.data());
  const float first = row[0];
  DequantiseRow(matrix, matrix.rows - 1, row.data());
  return first + row[matrix.cols - 1];
}

float Touch(const AttentionWeights& w, int32_t head_dim) {
  if (w.q.data == nullptr) return 0;
  return Touch(w.q) + Touch(w.k) + Touch(w.v) + Touch(w.out) + w.q_norm[0] +
         w.k_norm[head_dim - 1];
}

float Touch(const MlpWeights& w) {
  return Touch(w.gate) + Touch(w.up) + Touch(w.down);
}

// Reads both ends of every tensor.
float TouchWeights(const ModelFile& file) {
  float sum = 0;
  const TargetConfig& target = file.target_config();
  sum += Touch(file.target_weights().embedding);
  sum += Touch(file.target_weights().head);
  for (const TargetLayerWeights& layer : file.target_weights().layers) {
    sum += layer.input_norm[target.hidden_size - 1] + layer.post_norm[0];
    sum += Touch(layer.attention, target.attention.head_dim);
    if (layer.gdn.in_qkv.data != nullptr) {
      sum += Touch(layer.gdn.in_qkv) + Touch(layer.gdn.in_z) +
             Touch(layer.gdn.in_b) + Touch(layer.gdn.in_a) +
             Touch(layer.gdn.out) + layer.gdn.neg_exp_a[0] +
             layer.gdn.dt_bias[target.gdn.value_heads - 1] +
             layer.gdn.conv[4 * target.gdn.conv_channels() - 1] +
             layer.gdn.norm[target.gdn.value_dim - 1];
    }
    sum += Touch(layer.mlp) + Touch(layer.moe.router) +
           Touch(layer.moe.shared_router) + Touch(layer.moe.gate_up) +
           Touch(layer.moe.down) + Touch(layer.moe.shared);
  }
  const DraftConfig& draft = file.draft_config();
  sum += Touch(file.draft_weights().fc);
  for (const DraftLayerWeights& layer : file.draft_weights().layers) {
    sum += layer.input_norm[draft.hidden_size - 1] + layer.post_norm[0];
    sum += Touch(layer.attention, draft.attention.head_dim) + Touch(layer.mlp);
  }
  return sum;
}

// A file whose bytes are changed in place between openings.
class Patched {
 public:
  explicit Patched(std::string bytes)
      : path_(TempPath("patched.gdn")), bytes_(std::move(bytes)) {
    WriteFile(path_, bytes_);
    file_ = open(path_.c_str(), O_RDWR);
    EXPECT_GE(file_, 0);
  }
  ~Patched() { close(file_); }

  const std::string& path() const { return path_; }
  void Put(size_t position, uint8_t byte) {
    bytes_[position] = static_cast<char>(byte);
    ASSERT_EQ(pwrite(file_, &bytes_[position], 1, position), 1);
  }
  void PutSeal() {
    Reseal(&bytes_);
    ASSERT_EQ(pwrite(file_, &bytes_[schema::kIndexChecksumOffset], 4,
                     schema::kIndexChecksumOffset),
              4);
  }
  void Truncate(size_t length) { ASSERT_EQ(ftruncate(file_, length), 0); }
  // All bytes as they are known here.
  void Restore() {
    ASSERT_EQ(pwrite(file_, bytes_.data(), bytes_.size(), 0),
              static_cast<ssize_t>(bytes_.size()));
  }
  uint8_t at(size_t position) const {
    return static_cast<uint8_t>(bytes_[position]);
  }

 private:
  const std::string path_;
  std::string bytes_;
  int file_;
};

size_t IndexEnd(const std::string& file) {
  schema::FileHeader header;
  EXPECT_EQ(schema::ParseHeader(reinterpret_cast<const uint8_t*>(file.data()),
                                &header),
            schema::HeaderResult::kOk);
  return schema::kHeaderBytes + header.index_bytes;
}

// Steps through a file byte by byte, but quickly over the padding before the
// first segment, which is long and all alike.
size_t Next(size_t i, size_t index_end) {
  const bool is_padding =
      i > index_end && i + 64 < schema::kFirstSegmentAlignment;
  return i + (is_padding ? 61 : 1);
}

TEST(ModelDamageTest, TruncatedAtEveryLength) {
  const std::string sound = TinyFile(TinyTarget());
  const size_t index_end = IndexEnd(sound);
  Patched file(sound);
  for (size_t i = 0; i < sound.size(); i = Next(i, index_end)) {
    file.Truncate(i);
    const absl::Status status = ModelFile::Open(file.path()).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss)
        << i << ": " << status;
    file.Restore();
  }
}

TEST(ModelDamageTest, TruncatedInQuantisedSegments) {
  const std::string sound = QuantisedFile();
  Patched file(sound);
  for (size_t i = schema::kFirstSegmentAlignment; i < sound.size(); i += 5) {
    file.Truncate(i);
    const absl::Status status = ModelFile::Open(file.path()).status();
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss)
        << i << ": " << status;
    file.Restore();
  }
}

TEST(ModelDamageTest, OneByteTooMany) {
  WriteFile(TempPath("longer.gdn"), TinyFile(TinyTarget()) + '\0');
  const absl::Status status = ModelFile::Open(TempPath("longer.gdn")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("behind the end"));
}

void FlipEveryByteOfHeaderAndIndex(const std::string& sound) {
  const size_t end = IndexEnd(sound);
  Patched file(sound);
  int working = 0;
  for (size_t i = 0; i < end; ++i) {
    const uint8_t byte = file.at(i);
    // With the checksum as it was: always found.
    file.Put(i, byte ^ 0x10);
    ASSERT_FALSE(ModelFile::Open(file.path()).ok()) << i;
    // With a checksum that agrees: whatever gets through must work.
    for (const uint8_t value : {byte ^ 0x01, byte ^ 0x80, byte ^ 0xff}) {
      file.Put(i, value);
      file.PutSeal();
      const auto opened = ModelFile::Open(file.path());
      if (opened.ok()) {
        ++working;
        ASSERT_EQ(Validate((*opened)->target_config()).ok(),
                  (*opened)->kind() == ModelFile::Kind::kTarget);
        TouchWeights(**opened);
      } else {
        const absl::StatusCode code = opened.status().code();
        ASSERT_TRUE(code == absl::StatusCode::kDataLoss ||
                    code == absl::StatusCode::kUnimplemented ||
                    (code == absl::StatusCode::kInvalidArgument && i < 8))
            << i << ": " << opened.status();
      }
    }
    file.Put(i, byte);
    file.PutSeal();
  }
  // Names, texts, thresholds and the tensors' checksums may be anything.
  EXPECT_GT(working, 100);
  EXPECT_TRUE(ModelFile::Open(file.path()).ok());
}

TEST(ModelDamageTest, EveryByteOfATargetsHeaderAndIndexFlipped) {
  FlipEveryByteOfHeaderAndIndex(TinyFile(TinyTarget()));
}

TEST(ModelDamageTest, EveryByteOfADraftsHeaderAndIndexFlipped) {
  FlipEveryByteOfHeaderAndIndex(TinyFile(TinyDraft()));
}

TEST(ModelDamageTest, EveryByteOfAQuantisedHeaderAndIndexFlipped) {
  FlipEveryByteOfHeaderAndIndex(QuantisedFile());
}

TEST(ModelDamageTest, EveryByteOfAMixturesHeaderAndIndexFlipped) {
  FlipEveryByteOfHeaderAndIndex(
      TinyFile(TinyMoeTarget(), QuantisedSpecs(TinyMoeTarget())));
}

// From byte `begin` on, `step` to the next outside of the long padding.
void FlipBytesUnderChecksums(const std::string& sound, size_t begin,
                             size_t step) {
  const size_t index_end = IndexEnd(sound);
  Patched file(sound);
  for (size_t i = begin; i < sound.size(); i = Next(i, index_end) + step - 1) {
    const uint8_t byte = file.at(i);
    file.Put(i, byte ^ 0x04);
    ASSERT_FALSE(
        ModelFile::Open(file.path(), ModelFile::Verify::kChecksums).ok())
        << i;
    file.Put(i, byte);
  }
  EXPECT_TRUE(ModelFile::Open(file.path(), ModelFile::Verify::kChecksums).ok());
}

TEST(ModelDamageTest, ChecksumsFindEveryFlippedByte) {
  FlipBytesUnderChecksums(TinyFile(TinyTarget()), 0, 1);
}

TEST(ModelDamageTest, ChecksumsFindFlippedBytesOfNumbersPaddingAndScales) {
  FlipBytesUnderChecksums(QuantisedFile(), schema::kFirstSegmentAlignment, 3);
}

TEST(ModelDamageTest, DamagedTensorIsNamed) {
  std::string file = TinyFile(TinyTarget());
  file[file.size() - 100] ^= 1;
  WriteFile(TempPath("damaged.gdn"), file);
  EXPECT_TRUE(ModelFile::Open(TempPath("damaged.gdn")).ok());
  const absl::Status status =
      ModelFile::Open(TempPath("damaged.gdn"), ModelFile::Verify::kChecksums)
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("'head'"));
  EXPECT_THAT(status.message(), HasSubstr("damaged.gdn"));
}

// --- Forged headers ----------------------------------------------------------

absl::Status StatusWithHeaderField(uint32_t offset, int bytes, uint64_t value) {
  std::string file = TinyFile(TinyTarget());
  schema::internal::PutLittleEndian(
      value, bytes, reinterpret_cast<uint8_t*>(file.data()) + offset);
  Reseal(&file);
  WriteFile(TempPath("header.gdn"), file);
  return ModelFile::Open(TempPath("header.gdn")).status();
}

TEST(ModelDamageTest, ForgedHeaders) {
  constexpr uint64_t kMost = std::numeric_limits<uint64_t>::max();
  const uint64_t sizes[] = {0,          1,
                            63,         64,
                            65536,      65537,
                            1u << 26,   (1u << 26) + 1,
                            1ull << 32, kMost,
                            kMost - 63, kMost - 65535,
                            kMost / 2,  kMost / 2 + 1};
  for (const uint64_t value : sizes) {
    for (const uint32_t field :
         {schema::kIndexBytesOffset, schema::kFirstSegmentOffset,
          schema::kSegmentBytesOffset}) {
      if (field == schema::kFirstSegmentOffset && value == 65536) continue;
      EXPECT_EQ(StatusWithHeaderField(field, 8, value).code(),
                absl::StatusCode::kDataLoss)
          << field << " " << value;
    }
  }
  EXPECT_EQ(StatusWithHeaderField(schema::kVersionOffset, 4, 0).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusWithHeaderField(schema::kVersionOffset, 4, 2).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ(StatusWithHeaderField(schema::kReservedOffset, 4, 1).code(),
            absl::StatusCode::kDataLoss);
}

// --- Forged indexes ----------------------------------------------------------

absl::Status StatusOfIndexBytes(const std::string& bytes,
                                int64_t segment_bytes) {
  const std::string path = TempPath("forged.gdn");
  WriteFile(path, HeaderAndIndex(bytes, segment_bytes) +
                      std::string(segment_bytes, '\0'));
  const auto opened = ModelFile::Open(path);
  if (opened.ok()) TouchWeights(**opened);
  return opened.status();
}

// Of an index that was built by hand.
absl::Status StatusOfIndex(const flatbuffers::FlatBufferBuilder& builder) {
  return StatusOfIndexBytes(
      std::string(reinterpret_cast<const char*>(builder.GetBufferPointer()),
                  builder.GetSize()),
      64);
}

struct Forgery {
  std::string named;  // What the message must say.
  std::function<void(ModelIndex*)> forge;
};

void ExpectForgeriesFound(const ModelContents& contents,
                          const std::vector<TensorSpec>& specs,
                          const std::vector<Forgery>& forgeries) {
  const ModelIndex sound = PlacedIndex(contents, specs, 77);
  const int64_t segment_bytes = SegmentBytes(sound);
  ASSERT_EQ(StatusOfIndexBytes(SerializeIndex(sound).value(), segment_bytes),
            absl::OkStatus());
  for (const Forgery& forgery : forgeries) {
    ModelIndex index = sound;
    forgery.forge(&index);
    const absl::Status status =
        StatusOfIndexBytes(SerializeIndex(index).value(), segment_bytes);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << forgery.named;
    EXPECT_THAT(status.message(), HasSubstr(forgery.named));
    EXPECT_THAT(status.message(), HasSubstr("forged.gdn"));
  }
}

void ExpectForgeriesFound(const ModelContents& contents,
                          const std::vector<Forgery>& forgeries) {
  ExpectForgeriesFound(contents, Specs(contents), forgeries);
}

TEST(ModelDamageTest, ForgedTypes) {
  using I = ModelIndex;
  const auto type = [](size_t tensor, WeightType type) {
    return [=](I* i) { i->tensors[tensor].type = type; };
  };
  const auto size = [](size_t tensor, int64_t bytes) {
    return [=](I* i) { i->tensors[tensor].size_bytes = bytes; };
  };
  ExpectForgeriesFound(
      TinyWideTarget(), QuantisedSpecs(TinyWideTarget()),
      {
          {"'embedding' has 144 bytes, but type q8 and shape [8, 32] come to "
           "288",
           type(0, WeightType::kQ8)},
          {"but type f32", type(0, WeightType::kF32)},
          {"'layers.0.input_norm' has type 2 (q8), allowed are f32",
           type(1, WeightType::kQ8)},
          {"'layers.0.input_norm' has type 3 (q4)", type(1, WeightType::kQ4)},
          {"'layers.0.gdn.in_b' has type 2 (q8)", type(4, WeightType::kQ8)},
          {"'layers.0.gdn.in_a' has type 4 (q8w)", type(5, WeightType::kQ8W)},
          {"'layers.0.gdn.conv' has type 3 (q4)", type(6, WeightType::kQ4)},
          {"'layers.0.gdn.out' is [32, 6], type q4 needs multiples of 32",
           type(10, WeightType::kQ4)},
          // Without scales, with some, with too many, with padding behind.
          {"'embedding' has 128 bytes", size(0, 128)},
          {"'embedding' has 143 bytes", size(0, 143)},
          {"'embedding' has 145 bytes", size(0, 145)},
          {"'embedding' has 192 bytes", size(0, 192)},
          {"'embedding' has 0 bytes", size(0, 0)},
          // Another tensor in the place of the scales.
          {"'layers.0.input_norm' starts at 128, inside or before",
           [](I* i) { i->tensors[1].offset_bytes = 128; }},
          // The last tensor's scales beyond the end.
          {"'head' starts at", [](I* i) { i->tensors[27].offset_bytes += 64; }},
      });
}

// The same bytes are a matrix for products of another kind.
TEST(ModelDamageTest, TypeOfTheSameLayoutMayTakeItsPlace) {
  ModelIndex index =
      PlacedIndex(TinyWideTarget(), QuantisedSpecs(TinyWideTarget()), 77);
  ASSERT_EQ(index.tensors[27].type, WeightType::kQ8);
  index.tensors[27].type = WeightType::kQ8W;
  EXPECT_EQ(
      StatusOfIndexBytes(SerializeIndex(index).value(), SegmentBytes(index)),
      absl::OkStatus());
}

// Scales that no writer writes under checksums that agree: found where every
// byte is looked at.
TEST(ModelDamageTest, ForgedScales) {
  const std::string sound = QuantisedFile();
  const std::string path = TempPath("scales.gdn");
  WriteFile(path, sound);
  const auto opened = ModelFile::Open(path);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  const auto status_with = [&](size_t tensor, int64_t place,
                               std::string scale) {
    ModelIndex index =
        PlacedIndex(TinyWideTarget(), QuantisedSpecs(TinyWideTarget()), 77);
    std::string segments = sound.substr(sound.size() - SegmentBytes(index));
    TensorEntry& forged = index.tensors[tensor];
    const TensorLayout layout = LayoutOf(forged.type, forged.shape).value();
    segments.replace(forged.offset_bytes + layout.scale_offset +
                         place * static_cast<int64_t>(scale.size()),
                     scale.size(), scale);
    for (TensorEntry& entry : index.tensors) {
      entry.checksum = static_cast<uint32_t>(
          absl::ComputeCrc32c(absl::string_view(segments).substr(
              entry.offset_bytes, entry.size_bytes)));
    }
    WriteFile(path, HeaderAndIndex(SerializeIndex(index).value(),
                                   SegmentBytes(index)) +
                        segments);
    EXPECT_EQ(ModelFile::Open(path).status(), absl::OkStatus());
    return ModelFile::Open(path, ModelFile::Verify::kChecksums).status();
  };
  EXPECT_EQ(status_with(27, 3, std::string("\0\0\x80\x3f", 4)),
            absl::OkStatus());
  for (const char* const bits :
       {"\x00\x00\xc0\x7f", "\x00\x00\x80\x7f", "\x00\x00\x80\xff",
        "\x00\x00\x80\xbf", "\x00\x00\x00\x00", "\x00\x00\x00\x80",
        "\x01\x00\x00\x00", "\xff\xff\x7f\x00"}) {
    absl::Status status = status_with(27, 3, std::string(bits, 4));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("'head'"));
    EXPECT_THAT(status.message(), HasSubstr("scale 3 is"));
    if (bits[0] != 0) continue;  // Not of 16 bits.
    status = status_with(0, 7, std::string(bits + 2, 2));
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("'embedding'"));
    EXPECT_THAT(status.message(), HasSubstr("scale 7 is"));
  }
}

TEST(ModelDamageTest, ForgedTensors) {
  constexpr int32_t kHuge = std::numeric_limits<int32_t>::max();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  using I = ModelIndex;
  ExpectForgeriesFound(
      TinyTarget(),
      {
          {"'embedding' is [2147483647, 2147483647]",
           [](I* i) {
             i->tensors[0].shape = {kHuge, kHuge};
           }},
          {"'embedding' is [-8, 4]",
           [](I* i) {
             i->tensors[0].shape = {-8, 4};
           }},
          {"'embedding' is [8, 0]",
           [](I* i) {
             i->tensors[0].shape = {8, 0};
           }},
          {"'embedding' is [32]", [](I* i) { i->tensors[0].shape = {32}; }},
          {"3 dimensions",
           [](I* i) {
             i->tensors[0].shape = {2, 4, 4};
           }},
          {"0 dimensions", [](I* i) { i->tensors[0].shape = {}; }},
          {"'embedding' has 127 bytes",
           [](I* i) { i->tensors[0].size_bytes = 127; }},
          {"'embedding' has 0 bytes",
           [](I* i) { i->tensors[0].size_bytes = 0; }},
          {"bytes, allowed are numbers up to",
           [](I* i) { i->tensors[0].offset_bytes = -64; }},
          {"of kind 0",
           [](I* i) { i->tensors[0].type = WeightType::kUnknown; }},
          {"two tensors 'embedding'",
           [](I* i) { i->tensors[1] = i->tensors[0]; }},
          {"'nobody' does not belong",
           [](I* i) { i->tensors[3].name = "nobody"; }},
          {"'layers.1.attention.k', [4, 4], is missing",
           [](I* i) { i->tensors.erase(i->tensors.begin() + 17); }},
          {"is missing", [](I* i) { i->tensors.clear(); }},
          {"'final_norm' starts at 1",
           [](I* i) { i->tensors[26].offset_bytes = 1; }},
          {"ends at", [](I* i) { i->tensors[26].offset_bytes = 0; }},
          {"but the segments end",
           [](I* i) { i->tensors[26].offset_bytes = 1 << 20; }},
          {"but the segments end",
           [](I* i) { i->tensors[26].offset_bytes = kMost / 64 * 64; }},
          {"'head', [8, 4], is missing", [](I* i) { i->tensors.pop_back(); }},
          {"'head' does not belong",
           [](I* i) { i->contents.target.tied_head = true; }},
          {"name has 300 bytes",
           [](I* i) { i->tensors[0].name.assign(300, 'x'); }},
      });
}

TEST(ModelDamageTest, ForgedTargets) {
  using I = ModelIndex;
  ExpectForgeriesFound(
      TinyTarget(),
      {
          {"vocab_size is 0", [](I* i) { i->contents.target.vocab_size = 0; }},
          {"hidden_size",
           [](I* i) { i->contents.target.hidden_size = 1 << 30; }},
          {"layers", [](I* i) { i->contents.target.layers.clear(); }},
          {"layers",
           [](I* i) {
             i->contents.target.layers.resize(100000,
                                              LayerKind::kFullAttention);
           }},
          {"fingerprint is missing", [](I* i) { i->fingerprint = 0; }},
          {"a target names a target",
           [](I* i) { i->contents.target_fingerprint = 5; }},
          {"stop_tokens[0] is 8", [](I* i) { i->contents.stop_tokens = {8}; }},
          {"stop_tokens[1] is -1",
           [](I* i) {
             i->contents.stop_tokens = {1, -1};
           }},
          {"stop_tokens has 5000",
           [](I* i) { i->contents.stop_tokens.assign(5000, 1); }},
          {"name has 300",
           [](I* i) { i->contents.target.name.assign(300, 'x'); }},
          {"converter's name has 300",
           [](I* i) { i->contents.converter.assign(300, 'x'); }},
      });
}

TEST(ModelDamageTest, ForgedMixtures) {
  using I = ModelIndex;
  ExpectForgeriesFound(
      TinyMoeTarget(),
      {
          {"is labelled Qwen35Dense",
           [](I* i) { i->contents.target.moe.experts = -3; }},
          {"moe.experts is 2000000",
           [](I* i) { i->contents.target.moe.experts = 2000000; }},
          {"moe.experts_per_token is 4",
           [](I* i) { i->contents.target.moe.experts_per_token = 4; }},
          {"moe.expert_size is 0",
           [](I* i) { i->contents.target.moe.expert_size = 0; }},
          {"moe.shared_size is 0",
           [](I* i) { i->contents.target.moe.shared_size = 0; }},
          {"moe.layers has 1 entries",
           [](I* i) { i->contents.target.moe.layers = {true}; }},
          {"no layer with experts",
           [](I* i) {
             i->contents.target.moe.layers = {false, false};
           }},
          {"intermediate_size is 6",
           [](I* i) {
             i->contents.target.moe.layers = {true, true};
           }},
          {"'layers.0.moe.router' is [3, 32], the config makes it [4, 32]",
           [](I* i) { i->contents.target.moe.experts = 4; }},
          {"'layers.0.moe.gate_up' is [30, 32], the config makes it [36, 32]",
           [](I* i) { i->contents.target.moe.expert_size = 6; }},
          {"does not belong",
           [](I* i) { i->contents.target.moe = MoeConfig(); }},
      });
}

TEST(ModelDamageTest, ForgedTokenizers) {
  using I = ModelIndex;
  ExpectForgeriesFound(
      TinyTarget(),
      {
          {"tokenizer has 9 tokens",
           [](I* i) { i->contents.tokenizer->token_bytes.resize(9); }},
          {"tokenizer has 0 tokens",
           [](I* i) { i->contents.tokenizer->token_bytes.clear(); }},
          {"merges[0] is 6",
           [](I* i) { i->contents.tokenizer->merges[0].left = 6; }},
          {"merges[0] is -1",
           [](I* i) { i->contents.tokenizer->merges[0].right = -1; }},
          {"merges[0] is 6",
           [](I* i) { i->contents.tokenizer->merges[0].result = 6; }},
          {"merges[0] makes token 2, 'ab'",
           [](I* i) { i->contents.tokenizer->merges[0].right = 0; }},
          {"merges[0] makes token 0",
           [](I* i) {
             i->contents.tokenizer->merges[0] = {0, 3, 0};
           }},
          {"added_tokens[0].id is 6",
           [](I* i) { i->contents.tokenizer->added[0].id = 6; }},
          {"added_tokens[1].id is 4",
           [](I* i) { i->contents.tokenizer->added[1].id = 4; }},
          {"added_tokens[1].text is 'x'",
           [](I* i) { i->contents.tokenizer->added[1].text = "x"; }},
          {"added_tokens[0].text is ''",
           [](I* i) {
             i->contents.tokenizer->added[0].id = 3;
             i->contents.tokenizer->added[0].text = "";
           }},
          {"added token's text has 2000",
           [](I* i) {
             i->contents.tokenizer->added[1].text.assign(2000, 'x');
           }},
          {"expression is empty",
           [](I* i) { i->contents.tokenizer->pretokenizer = ""; }},
          {"expression has 5000",
           [](I* i) { i->contents.tokenizer->pretokenizer.assign(5000, 'x'); }},
      });
}

TEST(ModelDamageTest, ForgedChatTables) {
  using I = ModelIndex;
  ExpectForgeriesFound(
      TinyTarget(),
      {
          {"without a tokenizer", [](I* i) { i->contents.tokenizer.reset(); }},
          {"chat.stop_tokens[0] is 8",
           [](I* i) { i->contents.chat->stop_tokens = {8}; }},
          {"chat.control_tokens[1].id is 6",
           [](I* i) { i->contents.chat->control_tokens[1].id = 6; }},
          {"chat.control_tokens[0].text is 'x'",
           [](I* i) { i->contents.chat->control_tokens[0].text = "x"; }},
          {"chat.turn_end has 5000",
           [](I* i) { i->contents.chat->turn_end.assign(5000, 'x'); }},
          {"chat.default_system has 5000",
           [](I* i) {
             i->contents.chat->default_system = std::string(5000, 'x');
           }},
      });
}

// Case C18.
TEST(ModelDamageTest, ForgedDrafts) {
  using I = ModelIndex;
  ExpectForgeriesFound(
      TinyDraft(),
      {
          {"mask_token is -1", [](I* i) { i->contents.draft.mask_token = -1; }},
          {"mask_token is 8", [](I* i) { i->contents.draft.mask_token = 8; }},
          {"block_size is 0", [](I* i) { i->contents.draft.block_size = 0; }},
          {"block_size is 32", [](I* i) { i->contents.draft.block_size = 32; }},
          {"target_layers[1] is 2",
           [](I* i) { i->contents.draft.target_layers[1] = 2; }},
          {"there twice",
           [](I* i) {
             i->contents.draft.target_layers = {1, 1};
           }},
          {"names no target", [](I* i) { i->contents.target_fingerprint = 0; }},
          {"which are its target's",
           [](I* i) { i->contents.stop_tokens = {1}; }},
          {"'fc' is [4, 8], the config makes it [4, 4]",
           [](I* i) { i->contents.draft.target_layers = {1}; }},
      });
}

// --- FlatBuffers that are wrong as such --------------------------------------

TEST(ModelDamageTest, NoFlatBuffer) {
  const absl::Status status = StatusOfIndexBytes(
      std::string(4, '\0') + "DEG1" + std::string(64, '\0'), 64);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusOfIndexBytes("x", 64).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusOfIndexBytes(
                std::string(4, '\xff') + "DEG1" + std::string(64, '\xff'), 64)
                .code(),
            absl::StatusCode::kDataLoss);
}

TEST(ModelDamageTest, IndexOfAnotherRevision) {
  const ModelIndex sound = PlacedIndex(TinyTarget(), 77);
  std::string bytes = SerializeIndex(sound).value();
  bytes.replace(4, 4, "DEG2");
  absl::Status status = StatusOfIndexBytes(bytes, SegmentBytes(sound));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("DEG2"));
  bytes.replace(4, 4, "TFL3");
  status = StatusOfIndexBytes(bytes, SegmentBytes(sound));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
}

template <class Table>
const uint8_t* FieldOf(const Table* table, flatbuffers::voffset_t field) {
  return reinterpret_cast<const flatbuffers::Table*>(table)->GetAddressOf(
      field);
}

// Changes one byte field of the root table or of a table below it.
absl::Status StatusWithField(
    const ModelContents& contents,
    const std::function<const uint8_t*(const schema::Index&)>& field,
    uint8_t value) {
  const ModelIndex sound = PlacedIndex(contents, 77);
  std::string bytes = SerializeIndex(sound).value();
  const uint8_t* const at = field(*schema::GetIndex(bytes.data()));
  bytes[at - reinterpret_cast<const uint8_t*>(bytes.data())] =
      static_cast<char>(value);
  return StatusOfIndexBytes(bytes, SegmentBytes(sound));
}

TEST(ModelDamageTest, UnknownAndNewerKinds) {
  using Field = std::function<const uint8_t*(const schema::Index&)>;
  const Field target_fields[] = {
      [](const schema::Index& i) {
        return FieldOf(&i, schema::Index::VT_KIND);
      },
      [](const schema::Index& i) {
        return FieldOf(&i, schema::Index::VT_ARCHITECTURE);
      },
      [](const schema::Index& i) {
        return FieldOf(i.tensors()->Get(5), schema::Tensor::VT_TYPE);
      },
      [](const schema::Index& i) { return i.target()->layers()->Data(); },
  };
  for (const Field& field : target_fields) {
    EXPECT_EQ(StatusWithField(TinyTarget(), field, 0).code(),
              absl::StatusCode::kDataLoss);
    EXPECT_EQ(StatusWithField(TinyTarget(), field, 200).code(),
              absl::StatusCode::kUnimplemented);
  }
  const Field follows = [](const schema::Index& i) {
    return i.target()->moe()->layers()->Data();
  };
  EXPECT_EQ(StatusWithField(TinyMoeTarget(), follows, 0).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusWithField(TinyMoeTarget(), follows, 200).code(),
            absl::StatusCode::kUnimplemented);
  const Field mask = [](const schema::Index& i) {
    return FieldOf(i.draft(), schema::DraftConfig::VT_SLIDING_MASK);
  };
  EXPECT_EQ(StatusWithField(TinyDraft(), mask, 0).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusWithField(TinyDraft(), mask, 3).code(),
            absl::StatusCode::kUnimplemented);
  // Known, but of the other kind of model.
  EXPECT_EQ(StatusWithField(TinyTarget(), target_fields[0], 2).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusWithField(TinyTarget(), target_fields[1], 2).code(),
            absl::StatusCode::kDataLoss);
  // The architecture and what is there must agree.
  EXPECT_EQ(StatusWithField(TinyTarget(), target_fields[1], 3).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(StatusWithField(TinyMoeTarget(), target_fields[1], 1).code(),
            absl::StatusCode::kDataLoss);
}

TEST(ModelDamageTest, RequiredFeatureIsNamed) {
  flatbuffers::FlatBufferBuilder builder;
  const auto features = builder.CreateVectorOfStrings({"moe"});
  const auto text = builder.CreateString("");
  const auto tensors =
      builder.CreateVector(std::vector<flatbuffers::Offset<schema::Tensor>>());
  const auto stop_tokens = builder.CreateVector(std::vector<int32_t>());
  builder.Finish(
      schema::CreateIndex(builder, static_cast<schema::ModelKind>(9),
                          static_cast<schema::Architecture>(9), features, text,
                          text, 1, 0, 0, 0, tensors, 0, 0, stop_tokens),
      schema::IndexIdentifier());
  const absl::Status status = StatusOfIndex(builder);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("'moe'"));
}

// Many tables may point at one long text: what is copied must stay bounded.
TEST(ModelDamageTest, SharedTextIsNotMultiplied) {
  flatbuffers::FlatBufferBuilder builder;
  const auto text = builder.CreateString("");
  const auto long_text = builder.CreateString(std::string(1 << 20, 'x'));
  const auto shape = builder.CreateVector(std::vector<int32_t>{1});
  const auto tensor = schema::CreateTensor(
      builder, long_text, schema::TensorType::F32, shape, 0, 4, 0);
  const auto tensors = builder.CreateVector(
      std::vector<flatbuffers::Offset<schema::Tensor>>(100000, tensor));
  const auto none = builder.CreateVector(std::vector<int32_t>());
  const auto attention = schema::CreateAttention(builder, 1, 1, 2, 2, 1.0);
  const auto gdn = schema::CreateGdn(builder, 1, 1, 1, 1, 4);
  const auto layers = builder.CreateVector(
      std::vector<schema::LayerKind>{schema::LayerKind::GatedDeltaNet});
  const auto target = schema::CreateTargetConfig(builder, 1, 1, 1, 1, 1e-6f,
                                                 true, gdn, attention, layers);
  builder.Finish(
      schema::CreateIndex(builder, schema::ModelKind::Target,
                          schema::Architecture::Qwen35Dense, 0, text, text, 1,
                          0, target, 0, tensors, 0, 0, none),
      schema::IndexIdentifier());
  const absl::Status status = StatusOfIndex(builder);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("1048576 bytes"));
}

// Likewise the texts of an index itself, however many fields point at it: they
// are refused before anything is copied that others find fault with later.
TEST(ModelDamageTest, LongTextsAreRefusedBeforeAnythingElse) {
  for (const char* const what :
       {"name", "converter", "chat.turn_start", "chat.system_name",
        "chat.user_name", "chat.assistant_name", "chat.name_end",
        "chat.turn_end", "chat.reply_open_unset", "chat.reply_open_off",
        "chat.reply_open_on", "chat.default_system"}) {
    flatbuffers::FlatBufferBuilder builder;
    const auto none = builder.CreateVector(std::vector<int32_t>());
    const auto text = builder.CreateString("");
    const auto long_text = builder.CreateString(std::string(1 << 20, 'x'));
    const auto or_text = [&](absl::string_view field) {
      return field == what ? long_text : text;
    };
    const auto control_tokens = builder.CreateVector(
        std::vector<flatbuffers::Offset<schema::ControlToken>>());
    const auto chat = schema::CreateChat(
        builder, or_text("chat.turn_start"), or_text("chat.system_name"),
        or_text("chat.user_name"), or_text("chat.assistant_name"),
        or_text("chat.name_end"), or_text("chat.turn_end"),
        or_text("chat.reply_open_unset"), or_text("chat.reply_open_off"),
        or_text("chat.reply_open_on"), or_text("chat.default_system"), false,
        false, control_tokens, none);
    const auto tensors = builder.CreateVector(
        std::vector<flatbuffers::Offset<schema::Tensor>>());
    const auto attention = schema::CreateAttention(builder, 1, 1, 2, 2, 1.0);
    const auto gdn = schema::CreateGdn(builder, 1, 1, 1, 1, 4);
    const auto layers = builder.CreateVector(
        std::vector<schema::LayerKind>{schema::LayerKind::GatedDeltaNet});
    // No model has -1 tokens.
    const auto target = schema::CreateTargetConfig(
        builder, -1, 1, 1, 1, 1e-6f, true, gdn, attention, layers);
    builder.Finish(schema::CreateIndex(builder, schema::ModelKind::Target,
                                       schema::Architecture::Qwen35Dense, 0,
                                       or_text("name"), or_text("converter"), 1,
                                       0, target, 0, tensors, 0, chat, none),
                   schema::IndexIdentifier());
    const absl::Status status = StatusOfIndex(builder);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr(what));
    EXPECT_THAT(status.message(), HasSubstr("has 1048576 bytes"));
  }
}

// Offsets of tokens that jump about: the tables are built by hand.
TEST(ModelDamageTest, ForgedTokenOffsets) {
  const std::vector<std::vector<uint32_t>> cases = {
      {},        {0},          {1, 4},    {0, 3},
      {0, 5},    {0, 3, 2, 4}, {0, 9, 4}, {0, 0xffffffff, 4},
      {4, 0, 4},
  };
  for (const std::vector<uint32_t>& offsets : cases) {
    flatbuffers::FlatBufferBuilder builder;
    const auto text = builder.CreateString("x");
    const auto tensors = builder.CreateVector(
        std::vector<flatbuffers::Offset<schema::Tensor>>());
    const auto none = builder.CreateVector(std::vector<int32_t>());
    const auto attention = schema::CreateAttention(builder, 1, 1, 2, 2, 1.0);
    const auto gdn = schema::CreateGdn(builder, 1, 1, 1, 1, 4);
    const auto layers = builder.CreateVector(
        std::vector<schema::LayerKind>{schema::LayerKind::GatedDeltaNet});
    const auto target = schema::CreateTargetConfig(
        builder, 8, 1, 1, 1, 1e-6f, true, gdn, attention, layers);
    const auto token_bytes =
        builder.CreateVector(std::vector<uint8_t>{1, 2, 3, 4});
    const auto token_offsets = builder.CreateVector(offsets);
    const auto added = builder.CreateVector(
        std::vector<flatbuffers::Offset<schema::AddedToken>>());
    const auto tokenizer = schema::CreateTokenizer(
        builder, token_bytes, token_offsets, none, added, text, true, false);
    builder.Finish(
        schema::CreateIndex(builder, schema::ModelKind::Target,
                            schema::Architecture::Qwen35Dense, 0, text, text, 1,
                            0, target, 0, tensors, tokenizer, 0, none),
        schema::IndexIdentifier());
    const absl::Status status = StatusOfIndex(builder);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(status.message(), HasSubstr("token"));
  }
}

}  // namespace
}  // namespace deltaedge
