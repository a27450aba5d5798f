// SPDX-License-Identifier: Apache-2.0

// Files beyond 2 and 4 GiB (case S10): the same tensors as in small ones, far
// apart in files that are mostly holes, so that every offset counts and hardly
// a page of disk is used.

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/model/model_index.h"
#include "engine/options.h"
#include "engine/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "schema/header.h"
#include "tests/engine/model/tiny_models.h"
#include "tests/testing/demo_pair.h"
#include "tests/tools/convert/safetensors_writer.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/convert.h"
#include "tools/inspect/inspect.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using testing::HeaderAndIndex;
using testing::ReadBytes;
using testing::Runfile;
using testing::SafetensorsLength;
using testing::TempFolder;

constexpr int64_t kGiB = int64_t{1} << 30;

// Writes `bytes` at `offset` of an existing file.
void WriteAt(const std::string& path, int64_t offset,
             const std::string& bytes) {
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(offset);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  ASSERT_TRUE(file.good()) << path;
}

// A copy of a model file with room before each of its tensors, so that the
// first ends beyond 2 GiB and most lie beyond 4. False: not on this file
// system.
bool SpreadOut(const std::string& from, const std::string& to) {
  const std::string bytes = ReadBytes(from);
  const auto* const head = reinterpret_cast<const uint8_t*>(bytes.data());
  schema::FileHeader header;
  EXPECT_EQ(schema::ParseHeader(head, &header), schema::HeaderResult::kOk);
  auto index = ParseIndex(
      absl::MakeConstSpan(head + schema::kHeaderBytes, header.index_bytes));
  EXPECT_EQ(index.status(), absl::OkStatus());
  std::vector<std::string> segments;
  int64_t end = 2 * kGiB - 64;
  for (TensorEntry& tensor : index->tensors) {
    segments.push_back(bytes.substr(
        header.first_segment + static_cast<uint64_t>(tensor.offset_bytes),
        static_cast<uint64_t>(tensor.size_bytes)));
    tensor.offset_bytes = end;
    end += tensor.size_bytes + kGiB / 4;
    end -= end % 64;
  }
  const TensorEntry& last = index->tensors.back();
  const int64_t segment_bytes =
      (last.offset_bytes + last.size_bytes + 63) / 64 * 64;
  EXPECT_GT(segment_bytes, 8 * kGiB);
  const std::string begin =
      HeaderAndIndex(SerializeIndex(*index).value(), segment_bytes);
  testing::WriteBytes(to, begin);
  const auto first = static_cast<int64_t>(begin.size());
  if (truncate(to.c_str(), first + segment_bytes) != 0) return false;
  for (size_t i = 0; i < segments.size(); ++i) {
    WriteAt(to, first + index->tensors[i].offset_bytes, segments[i]);
  }
  return true;
}

std::vector<float> LogitsOf(const ModelFiles& files) {
  EngineOptions options;
  options.num_threads = 1;
  std::vector<float> logits;
  const auto engine = Engine::Open(files, options);
  EXPECT_EQ(engine.status(), absl::OkStatus());
  if (!engine.ok()) return logits;
  SessionOptions session_options;
  session_options.draft_tokens = 7;
  const auto session = (*engine)->NewSession(session_options);
  EXPECT_EQ(session.status(), absl::OkStatus());
  EXPECT_EQ((*session)->Prefill({3, 1, 4, 1, 5, 9, 2, 6}), absl::OkStatus());
  GenerateOptions generate;
  generate.max_new_tokens = 20;
  generate.ignore_model_stop_tokens = true;
  generate.logits = true;
  EXPECT_TRUE((*session)
                  ->Generate(generate,
                             [&](const TokenEvent& token) {
                               logits.insert(logits.end(), token.logits.begin(),
                                             token.logits.end());
                               return true;
                             })
                  .ok());
  return logits;
}

TEST(LargeFilesTest, ModelsBeyondFourGibibytes) {
  const std::string target = Runfile("tests/testdata/models/next_q4.gdn");
  const std::string draft = Runfile("tests/testdata/models/next_draft.gdn");
  const TempFolder folder;
  if (!SpreadOut(target, folder / "target.gdn") ||
      !SpreadOut(draft, folder / "draft.gdn")) {
    GTEST_SKIP() << "the file system has no sparse files of this size";
  }

  // The engine: embedding rows come from the mapped file, all else is packed.
  const std::vector<float> logits = LogitsOf({target, draft});
  EXPECT_EQ(logits.size(), 20u * 300);
  EXPECT_EQ(LogitsOf({folder / "target.gdn", folder / "draft.gdn"}), logits);

  // What is said of them.
  InspectOptions options;
  options.path = folder / "target.gdn";
  options.json = true;
  const auto text = Inspect(options);
  ASSERT_EQ(text.status(), absl::OkStatus());
  const Json json = Json::parse(*text);
  EXPECT_GT(json["header"]["file_bytes"].get<int64_t>(), 8 * kGiB);
  options.tensor = json["tensors"].back()["name"];
  const auto spread = Inspect(options);
  options.path = target;
  const auto whole = Inspect(options);
  ASSERT_EQ(spread.status(), absl::OkStatus());
  ASSERT_EQ(whole.status(), absl::OkStatus());
  EXPECT_EQ(Json::parse(*spread)["statistics"],
            Json::parse(*whole)["statistics"]);

  // Without its last tensor.
  const int64_t place = json["header"]["file_bytes"].get<int64_t>() -
                        json["tensors"].back()["size_bytes"].get<int64_t>();
  options.path = folder / "target.gdn";
  ASSERT_EQ(truncate(options.path.c_str(), place), 0);
  EXPECT_EQ(Inspect(options).status().code(), absl::StatusCode::kDataLoss);
}

// A folder whose tensors lie behind a large one of the vision tower.
TEST(LargeFilesTest, CheckpointsBeyondFourGibibytes) {
  const std::string source = "tests/testdata/golden/tiny-qwen35-untied";
  const TempFolder folder;
  const std::string bytes = ReadBytes(source + "/model.safetensors");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  Json header = Json::parse(bytes.substr(8, header_bytes));
  const std::string data = bytes.substr(8 + header_bytes);
  const int64_t hole = 5 * kGiB + 2;
  for (Json& entry : header) {
    if (!entry.contains("data_offsets")) continue;
    for (Json& offset : entry["data_offsets"]) {
      offset = offset.get<int64_t>() + hole;
    }
  }
  header["model.visual.large"] = {
      {"dtype", "BF16"}, {"shape", {hole / 2}}, {"data_offsets", {0, hole}}};
  const std::string text = header.dump();
  const std::string path =
      folder.Write("model.safetensors", SafetensorsLength(text.size()) + text);
  const auto begin = static_cast<int64_t>(8 + text.size());
  if (truncate(path.c_str(), begin + hole) != 0) {
    GTEST_SKIP() << "the file system has no sparse files of this size";
  }
  WriteAt(path, begin + hole, data);
  folder.Write("config.json", ReadBytes(source + "/config.json"));

  ConvertOptions options;
  options.name = "large";
  options.input = folder.path();
  options.output = folder / "large.gdn";
  const auto summary = ConvertCheckpoint(options);
  ASSERT_EQ(summary.status(), absl::OkStatus());
  ASSERT_EQ(summary->skipped.size(), 1u);
  EXPECT_EQ(summary->skipped[0].bytes, hole);
  options.input = source;
  options.output = folder / "small.gdn";
  ASSERT_EQ(ConvertCheckpoint(options).status(), absl::OkStatus());
  EXPECT_TRUE(ReadBytes(folder / "large.gdn") ==
              ReadBytes(folder / "small.gdn"));

  ASSERT_EQ(truncate(path.c_str(),
                     begin + hole + static_cast<int64_t>(data.size()) - 1),
            0);
  options.input = folder.path();
  EXPECT_THAT(ConvertCheckpoint(options).status().message(),
              HasSubstr("model.safetensors"));
}

}  // namespace
}  // namespace deltaedge
