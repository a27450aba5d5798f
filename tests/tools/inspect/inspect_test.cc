// SPDX-License-Identifier: Apache-2.0

#include "tools/inspect/inspect.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_writer.h"
#include "engine/model/tensor_list.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/model/tiny_models.h"

namespace deltaedge {
namespace {

using ::deltaedge::testing::kTinyDraftFingerprint;
using ::deltaedge::testing::kTinyTargetFingerprint;
using ::deltaedge::testing::kTinyWideFingerprint;
using ::deltaedge::testing::QuantisedSpecs;
using ::deltaedge::testing::ReadFile;
using ::deltaedge::testing::Reseal;
using ::deltaedge::testing::TempPath;
using ::deltaedge::testing::TinyDraft;
using ::deltaedge::testing::TinyMoeTarget;
using ::deltaedge::testing::TinyTarget;
using ::deltaedge::testing::TinyWideTarget;
using ::deltaedge::testing::WriteFile;
using ::deltaedge::testing::WriteTinyModel;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

std::string Written(const std::string& name, const ModelContents& contents,
                    uint64_t fingerprint) {
  const std::string path = TempPath(name);
  EXPECT_EQ(WriteTinyModel(path, contents, fingerprint), absl::OkStatus());
  return path;
}

std::string Text(const std::string& path, const std::string& tensor = "") {
  InspectOptions options;
  options.path = path;
  options.tensor = tensor;
  const absl::StatusOr<std::string> text = Inspect(options);
  EXPECT_EQ(text.status(), absl::OkStatus());
  return text.value_or("");
}

Json Parsed(const std::string& path, const std::string& tensor = "") {
  InspectOptions options;
  options.path = path;
  options.tensor = tensor;
  options.json = true;
  const absl::StatusOr<std::string> text = Inspect(options);
  EXPECT_EQ(text.status(), absl::OkStatus());
  return Json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
}

TEST(InspectTest, TellsAllOfATarget) {
  const std::string path =
      Written("target.gdn", TinyTarget(), kTinyTargetFingerprint);
  const Json json = Parsed(path);
  EXPECT_EQ(json["kind"], "target");
  EXPECT_EQ(json["name"], "tiny");
  EXPECT_EQ(json["converter"], "by hand");
  EXPECT_EQ(json["fingerprint"], "0123456789abcdef");
  EXPECT_FALSE(json.contains("target_fingerprint"));
  EXPECT_EQ(json["checksums"], "not compared");
  EXPECT_EQ(json["header"]["file_bytes"], ReadFile(path).size());
  EXPECT_EQ(json["header"]["first_segment"], 65536);
  EXPECT_EQ(json["config"]["hidden_size"], 4);
  EXPECT_EQ(json["config"]["gdn"]["value_dim"], 3);
  EXPECT_EQ(json["config"]["attention"]["rope_theta"], 1e7);
  EXPECT_EQ(json["config"]["layers"], Json({"gated_delta", "attention"}));
  EXPECT_EQ(json["tokenizer"]["tokens"], 6);
  EXPECT_EQ(json["tokenizer"]["special_tokens"], 2);
  EXPECT_EQ(json["chat"]["default_system"], "Be brief.");
  EXPECT_EQ(json["stop_tokens"], Json::array({5}));
  EXPECT_EQ(json["tensors"].size(), 28);
  EXPECT_EQ(json["tensors"][0]["name"], "embedding");
  EXPECT_EQ(json["tensors"][0]["shape"], Json({8, 4}));
  EXPECT_EQ(json["tensors"][0]["checksum"], "3a621e28");

  const std::string text = Text(path);
  EXPECT_THAT(text, HasSubstr("0123456789abcdef"));
  EXPECT_THAT(text, HasSubstr("layers.1.attention.q  "));
  EXPECT_THAT(text, HasSubstr("[16, 4]"));
  EXPECT_THAT(text, HasSubstr("<|end|>\\n"));
}

TEST(InspectTest, TellsOfExperts) {
  const std::string path = Written("moe.gdn", TinyMoeTarget(), 1);
  const Json moe = Parsed(path)["config"]["moe"];
  EXPECT_EQ(moe["experts"], 3);
  EXPECT_EQ(moe["experts_per_token"], 2);
  EXPECT_EQ(moe["normalise"], true);
  EXPECT_EQ(moe["layers"], Json({"experts", "dense"}));
  EXPECT_THAT(Text(path), HasSubstr("layers.0.moe.gate_up"));
  EXPECT_EQ(Parsed(path, "layers.0.moe.down")["statistics"]["count"],
            3 * 32 * 5);
}

TEST(InspectTest, TellsAllOfADraft) {
  const std::string path =
      Written("draft.gdn", TinyDraft(), kTinyDraftFingerprint);
  const Json json = Parsed(path);
  EXPECT_EQ(json["kind"], "draft");
  EXPECT_EQ(json["fingerprint"], "fedcba9876543210");
  EXPECT_EQ(json["target_fingerprint"], "0123456789abcdef");
  EXPECT_EQ(json["config"]["block_size"], 4);
  EXPECT_EQ(json["config"]["sliding_mask"], "symmetric");
  EXPECT_EQ(json["config"]["sliding_windows"], Json({0, 16}));
  EXPECT_FALSE(json.contains("tokenizer"));
  EXPECT_THAT(Text(path), HasSubstr("target_fingerprint"));
}

TEST(InspectTest, WeightsAddUp) {
  const std::string path = TempPath("quantised.gdn");
  const ModelContents wide = TinyWideTarget();
  ASSERT_EQ(
      WriteTinyModel(path, wide, QuantisedSpecs(wide), kTinyWideFingerprint),
      absl::OkStatus());
  const Json json = Parsed(path);
  int64_t bytes = 0, tensors = 0;
  std::vector<std::string> lines;
  for (const Json& part : json["weights"]) {
    bytes += part["bytes"].get<int64_t>();
    tensors += part["tensors"].get<int64_t>();
    lines.push_back(part["part"].get<std::string>() + " " +
                    part["type"].get<std::string>());
  }
  EXPECT_EQ(bytes, json["weight_bytes"]);
  EXPECT_EQ(tensors, json["tensors"].size());
  EXPECT_THAT(lines, ::testing::Contains("embedding, head q4"));
  EXPECT_THAT(lines, ::testing::Contains("delta layers q8w"));
}

// Element i of tensor t is t + i / 16.
TEST(InspectTest, StatisticsOfATensor) {
  const std::string path =
      Written("values.gdn", TinyTarget(), kTinyTargetFingerprint);
  Json json = Parsed(path, "embedding");
  EXPECT_EQ(json["tensor"], "embedding");
  EXPECT_EQ(json["type"], "f32");
  const Json& statistics = json["statistics"];
  EXPECT_EQ(statistics["count"], 32);
  EXPECT_EQ(statistics["zeros"], 1);
  EXPECT_EQ(statistics["nans"], 0);
  EXPECT_EQ(statistics["infinities"], 0);
  EXPECT_EQ(statistics["min"], 0);
  EXPECT_EQ(statistics["max"], 31.0 / 16);
  EXPECT_DOUBLE_EQ(statistics["mean"], 31.0 / 32);
  // The mean of i * i below 32 is 31 * 63 / 6.
  EXPECT_DOUBLE_EQ(statistics["rms"], std::sqrt(31.0 * 63 / 6) / 16);
  // A small tensor, which is no matrix.
  json = Parsed(path, "layers.0.input_norm");
  EXPECT_EQ(json["statistics"]["min"], 1);
  EXPECT_EQ(json["statistics"]["max"], 1 + 3.0 / 16);
  EXPECT_THAT(Text(path, "embedding"), HasSubstr("1.9375"));
}

// A row of int4 from schema/FORMAT.md: -8, -8, -3, -6, 2, -4 ... times 1/64.
TEST(InspectTest, StatisticsAreOfWhatTheNumbersStandFor) {
  const std::string path = TempPath("quantised.gdn");
  const ModelContents wide = TinyWideTarget();
  ASSERT_EQ(
      WriteTinyModel(path, wide, QuantisedSpecs(wide), kTinyWideFingerprint),
      absl::OkStatus());
  const Json json = Parsed(path, "embedding");
  EXPECT_EQ(json["type"], "q4");
  EXPECT_EQ(json["statistics"]["count"], 256);
  // Row 7 has the largest scale, 8/64, and numbers down to -8.
  EXPECT_EQ(json["statistics"]["min"], -1.0);
}

TEST(InspectTest, NumbersThatAreNone) {
  const ModelContents contents = TinyTarget();
  const std::string path = TempPath("nan.gdn");
  const std::vector<TensorSpec> specs = TensorSpecs(contents.target);
  const auto writer = ModelWriter::Create(path, contents, specs);
  ASSERT_EQ(writer.status(), absl::OkStatus());
  for (const TensorSpec& spec : specs) {
    size_t count = 1;
    for (const int32_t extent : spec.shape) count *= extent;
    std::vector<float> values(count, std::numeric_limits<float>::quiet_NaN());
    if (spec.name == "head") {
      values[1] = -std::numeric_limits<float>::infinity();
      values[2] = 3;
    }
    ASSERT_EQ((*writer)->Begin(spec.name), absl::OkStatus());
    ASSERT_EQ((*writer)->Append(absl::MakeConstSpan(values)), absl::OkStatus());
  }
  ASSERT_EQ((*writer)->Finish(1), absl::OkStatus());
  Json json = Parsed(path, "embedding")["statistics"];
  EXPECT_EQ(json["nans"], 32);
  EXPECT_TRUE(json["min"].is_null() && json["rms"].is_null());
  json = Parsed(path, "head")["statistics"];
  EXPECT_EQ(json["nans"], 30);
  EXPECT_EQ(json["infinities"], 1);
  EXPECT_EQ(json["min"], 3);
  EXPECT_EQ(json["rms"], 3);
  EXPECT_THAT(Text(path, "embedding"), HasSubstr("none"));
}

TEST(InspectTest, ErrorsNameWhatIsWrong) {
  InspectOptions options;
  options.path = TempPath("missing.gdn");
  EXPECT_EQ(Inspect(options).status().code(), absl::StatusCode::kNotFound);
  options.path = TempPath("foreign.gdn");
  WriteFile(options.path, "GGUF and more");
  EXPECT_THAT(Inspect(options).status().message(), HasSubstr("GGUF"));
  options.path = Written("target.gdn", TinyTarget(), kTinyTargetFingerprint);
  options.tensor = "attention";
  const absl::Status status = Inspect(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("layers.1.attention.q_norm"));
}

TEST(InspectTest, VerifyReadsWhatOtherwiseNobodyDoes) {
  InspectOptions options;
  options.path = Written("target.gdn", TinyTarget(), kTinyTargetFingerprint);
  options.verify = true;
  options.json = true;
  const auto sound = Inspect(options);
  ASSERT_EQ(sound.status(), absl::OkStatus());
  EXPECT_THAT(*sound, HasSubstr("\"checksums\": \"right\""));

  std::string bytes = ReadFile(options.path);
  bytes[65536 + 5] ^= 1;
  WriteFile(options.path, bytes);
  const absl::Status status = Inspect(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(status.message(), HasSubstr("'embedding' is damaged"));
  options.verify = false;
  EXPECT_EQ(Inspect(options).status(), absl::OkStatus());
}

// Terminals obey some bytes, and JSON takes none that are not UTF-8.
TEST(InspectTest, WhatIsPrintedIsPrintable) {
  ModelContents contents = TinyTarget();
  contents.target.name = "\x1b[2J\xff\n";
  contents.converter = "\"quoted\"";
  const std::string path = Written("rude.gdn", contents, 1);
  EXPECT_THAT(Text(path), Not(HasSubstr("\x1b")));
  EXPECT_THAT(Text(path), HasSubstr("\\x1b[2J"));
  const Json json = Parsed(path);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["converter"], "\"quoted\"");
}

// Any damage is an error or does not matter; none ends the program.
TEST(InspectTest, DamagedFilesAreErrors) {
  const std::string whole =
      ReadFile(Written("whole.gdn", TinyDraft(), kTinyDraftFingerprint));
  InspectOptions options;
  options.path = TempPath("damaged.gdn");
  for (const size_t size : {0, 7, 63, 64, 1000, 65535, 65536, 66000}) {
    WriteFile(options.path, whole.substr(0, size));
    EXPECT_FALSE(Inspect(options).ok()) << size;
  }
  int opened = 0;
  for (size_t i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    bytes[i] = static_cast<char>(bytes[i] ^ (1 << i % 8));
    // As if whoever changed it had meant to.
    Reseal(&bytes);
    WriteFile(options.path, bytes);
    for (const bool json : {false, true}) {
      options.json = json;
      opened += Inspect(options).ok();
    }
  }
  EXPECT_GT(opened, 0);
}

}  // namespace
}  // namespace deltaedge
