// SPDX-License-Identifier: Apache-2.0

// The bytes of files, against files that were written when a revision was
// released and against the example in schema/FORMAT.md.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/model_index.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schema/header.h"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::kTinyDraftFingerprint;
using ::deltaedge::testing::kTinyMoeFingerprint;
using ::deltaedge::testing::kTinyTargetFingerprint;
using ::deltaedge::testing::kTinyWideFingerprint;
using ::deltaedge::testing::QuantisedSpecs;
using ::deltaedge::testing::ReadFile;
using ::deltaedge::testing::Specs;
using ::deltaedge::testing::TempPath;
using ::deltaedge::testing::TinyDraft;
using ::deltaedge::testing::TinyMoeTarget;
using ::deltaedge::testing::TinyTarget;
using ::deltaedge::testing::TinyWideTarget;
using ::deltaedge::testing::WriteTinyModel;
using ::testing::Contains;

constexpr char kTarget[] = "tests/testdata/model/target_v1.gdn";
constexpr char kDraft[] = "tests/testdata/model/draft_v1.gdn";
constexpr char kQuantised[] = "tests/testdata/model/quantised_v2.gdn";
constexpr char kMoe[] = "tests/testdata/model/moe_v3.gdn";

void ExpectSameBytes(const std::string& file, const ModelContents& contents,
                     const std::vector<TensorSpec>& specs,
                     uint64_t fingerprint) {
  const std::string path = TempPath("written.gdn");
  ASSERT_EQ(WriteTinyModel(path, contents, specs, fingerprint),
            absl::OkStatus());
  const std::string written = ReadFile(path);
  const std::string golden = ReadFile(file);
  ASSERT_EQ(written.size(), golden.size());
  for (size_t i = 0; i < golden.size(); ++i) {
    ASSERT_EQ(written[i], golden[i]) << "byte " << i;
  }
}

TEST(FormatTest, WriterMakesTheGoldenBytes) {
  ExpectSameBytes(kTarget, TinyTarget(), Specs(TinyTarget()),
                  kTinyTargetFingerprint);
  ExpectSameBytes(kDraft, TinyDraft(), Specs(TinyDraft()),
                  kTinyDraftFingerprint);
  ExpectSameBytes(kQuantised, TinyWideTarget(),
                  QuantisedSpecs(TinyWideTarget()), kTinyWideFingerprint);
  ExpectSameBytes(kMoe, TinyMoeTarget(), QuantisedSpecs(TinyMoeTarget()),
                  kTinyMoeFingerprint);
}

TEST(FormatTest, FilesOfRevisionOneOpen) {
  const auto target = ModelFile::Open(kTarget, ModelFile::Verify::kChecksums);
  ASSERT_EQ(target.status(), absl::OkStatus());
  const auto draft = ModelFile::Open(kDraft, ModelFile::Verify::kChecksums);
  ASSERT_EQ(draft.status(), absl::OkStatus());
  EXPECT_EQ(CheckPair(**target, **draft), absl::OkStatus());
}

TEST(FormatTest, FilesOfRevisionTwoOpen) {
  const auto target =
      ModelFile::Open(kQuantised, ModelFile::Verify::kChecksums);
  ASSERT_EQ(target.status(), absl::OkStatus());
  EXPECT_EQ((*target)->target_weights().embedding.type, WeightType::kQ4);
}

TEST(FormatTest, FilesOfRevisionThreeOpen) {
  const auto target = ModelFile::Open(kMoe, ModelFile::Verify::kChecksums);
  ASSERT_EQ(target.status(), absl::OkStatus());
  EXPECT_EQ((*target)->target_config().moe.experts, 3);
}

std::vector<std::string> LinesOfFormatMd() {
  std::vector<std::string> lines;
  for (const absl::string_view line :
       absl::StrSplit(ReadFile("schema/FORMAT.md"), '\n')) {
    lines.emplace_back(absl::StripAsciiWhitespace(line));
  }
  return lines;
}

// The examples of FORMAT.md, line by line as they stand there: of tensors whose
// name contains `part`.
void ExpectTypedLines(const char* file, absl::string_view part) {
  const std::vector<std::string> lines = LinesOfFormatMd();
  const auto opened = ModelFile::Open(file);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  for (const TensorEntry& tensor : (*opened)->tensors()) {
    if (!absl::StrContains(tensor.name, part)) continue;
    const TensorLayout layout = LayoutOf(tensor.type, tensor.shape).value();
    const std::string type = absl::AsciiStrToUpper(WeightTypeName(tensor.type));
    EXPECT_THAT(lines,
                Contains(absl::StrFormat(
                    "| `%s` | %s | %s | %d | %d | %d | %d | `%08x` |",
                    tensor.name, ShapeText(tensor.shape), type,
                    65536 + tensor.offset_bytes, layout.number_bytes,
                    layout.scale_bytes, tensor.size_bytes, tensor.checksum)));
  }
}

TEST(FormatTest, ExampleWithScalesOfFormatMd) {
  ExpectTypedLines(kQuantised, "");
}

TEST(FormatTest, ExampleWithExpertsOfFormatMd) {
  ExpectTypedLines(kMoe, ".moe.");
}

TEST(FormatTest, ExampleOfFormatMd) {
  const std::vector<std::string> lines = LinesOfFormatMd();
  const std::string file = ReadFile(kTarget);
  const auto opened = ModelFile::Open(kTarget);
  ASSERT_EQ(opened.status(), absl::OkStatus());

  for (size_t i = 0; i < schema::kHeaderBytes; i += 16) {
    std::string line = absl::StrFormat("%04x ", i);
    for (size_t j = i; j < i + 16; ++j) {
      absl::StrAppendFormat(&line, " %02x", static_cast<uint8_t>(file[j]));
    }
    EXPECT_THAT(lines, Contains(line));
  }
  schema::FileHeader header;
  ASSERT_EQ(schema::ParseHeader(reinterpret_cast<const uint8_t*>(file.data()),
                                &header),
            schema::HeaderResult::kOk);
  EXPECT_THAT(lines, Contains(absl::StrFormat("| index | 64 | %d |",
                                              header.index_bytes)));
  EXPECT_THAT(lines, Contains(absl::StrFormat(
                         "| zeros | %d | %d |", 64 + header.index_bytes,
                         header.first_segment - 64 - header.index_bytes)));
  EXPECT_THAT(lines, Contains(absl::StrFormat("| segments | %d | %d |",
                                              header.first_segment,
                                              header.segment_bytes)));
  EXPECT_THAT(lines, Contains(absl::StrFormat("| end | %d | |", file.size())));
  for (const TensorEntry& tensor : (*opened)->tensors()) {
    EXPECT_THAT(lines, Contains(absl::StrFormat(
                           "| `%s` | %s | %d | %d | `%08x` |", tensor.name,
                           ShapeText(tensor.shape),
                           header.first_segment + tensor.offset_bytes,
                           tensor.size_bytes, tensor.checksum)));
  }
}

}  // namespace
}  // namespace deltaedge
