// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/gguf.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/random.h"
#include "tests/tools/convert/gguf_writer.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using testing::GgufType;
using testing::GgufWriter;
using ::testing::HasSubstr;
using testing::kBf16;
using testing::kF16;
using testing::kF32;
using testing::kQ40;
using testing::kQ80;
using testing::Little;
using testing::Random;
using testing::TempFolder;
using testing::ToF16;

std::vector<float> Read(const Gguf& file, const std::string& name) {
  const SourceTensor* const tensor = file.Find(name);
  if (tensor == nullptr) return {};
  std::vector<float> values(tensor->elements);
  const absl::Status status =
      file.ReadFloats(*tensor, 0, absl::MakeSpan(values));
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

// A file with something of everything.
GgufWriter Sample() {
  GgufWriter writer;
  writer.Text("general.architecture", "sample")
      .U32("sample.count", 7)
      .Bools("sample.flags", {true, false})
      .Texts("sample.names", {"a", "", "bc"})
      .Tensor("x", {2, 3}, kF32, {1, 2, 3, 4, 5, 6})
      .Tensor("y", {32}, kQ80, std::vector<float>(32, 0.5f));
  return writer;
}

std::string ErrorOf(const std::string& bytes) {
  const TempFolder folder;
  return std::string(
      Gguf::Open(folder.Write("x.gguf", bytes)).status().message());
}

TEST(GgufTest, ReadsValuesOfEveryType) {
  const TempFolder folder;
  GgufWriter writer;
  writer.Number("u8", 0, uint8_t{200})
      .Number("i8", 1, int8_t{-100})
      .Number("u16", 2, uint16_t{60000})
      .Number("i16", 3, int16_t{-30000})
      .Number("u32", 4, uint32_t{4000000000})
      .Number("i32", 5, int32_t{-2000000000})
      .Number("f32", 6, 1.5f)
      .Bool("bool", true)
      .Text("text", "\xff text")
      .I32s("array", {1, -2, 3})
      .Number("u64", 10, uint64_t{18446744073709551615u})
      .Number("i64", 11, int64_t{-9000000000000000000})
      .Number("f64", 12, 1e300);
  const auto file = Gguf::Open(folder.Write("x.gguf", writer.Bytes()));
  ASSERT_TRUE(file.ok()) << file.status();
  const Json& keys = file->metadata();
  EXPECT_EQ(keys.size(), 13u);
  EXPECT_EQ(keys["u8"], 200);
  EXPECT_EQ(keys["i8"], -100);
  EXPECT_EQ(keys["u16"], 60000);
  EXPECT_EQ(keys["i16"], -30000);
  EXPECT_EQ(keys["u32"], 4000000000);
  EXPECT_EQ(keys["i32"], -2000000000);
  EXPECT_EQ(keys["f32"], 1.5);
  EXPECT_EQ(keys["bool"], true);
  EXPECT_EQ(keys["text"], "\xff text");
  EXPECT_EQ(keys["array"], Json({1, -2, 3}));
  EXPECT_EQ(keys["u64"], 18446744073709551615u);
  EXPECT_EQ(keys["i64"], -9000000000000000000);
  EXPECT_EQ(keys["f64"], 1e300);
}

TEST(GgufTest, ReadsTensorsOfEveryTypeWithoutLoss) {
  for (const uint32_t version : {2u, 3u}) {
    const TempFolder folder;
    GgufWriter writer(version);
    writer.Alignment(64)
        .Tensor("f32", {3}, kF32, {1.1f, -2.2f, 3e-38f})
        .Tensor("f16", {2, 2}, kF16, {0.5f, -1.25f, 65504, 0x1p-14f})
        .Tensor("bf16", {1, 2}, kBf16, {3, -0x1.02p10f});
    // Numbers -16 .. 15 at a scale of 2, and 0, 1 .. 15, 15 .. 1, 0 less 8 at
    // one of -0.5.
    std::string q8 = Little(ToF16(2)), q4 = Little(ToF16(-0.5f));
    for (int i = 0; i < 32; ++i) q8.push_back(static_cast<char>(i - 16));
    for (int i = 0; i < 16; ++i) {
      q4.push_back(static_cast<char>(i | (15 - i) << 4));
    }
    writer.Tensor("q8", {32}, kQ80, q8).Tensor("q4", {1, 32}, kQ40, q4);
    const auto file = Gguf::Open(folder.Write("x.gguf", writer.Bytes()));
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_THAT(Read(*file, "f32"), ElementsAre(1.1f, -2.2f, 3e-38f));
    EXPECT_THAT(Read(*file, "f16"), ElementsAre(0.5f, -1.25f, 65504, 0x1p-14f));
    EXPECT_THAT(Read(*file, "bf16"), ElementsAre(3, -0x1.02p10f));
    const std::vector<float> ints = Read(*file, "q8");
    const std::vector<float> halves = Read(*file, "q4");
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(ints[i], 2.0f * static_cast<float>(i - 16)) << i;
      EXPECT_EQ(halves[i],
                -0.5f * static_cast<float>((i < 16 ? i : 31 - i) - 8))
          << i;
    }
    const SourceTensor& f16 = *file->Find("f16");
    EXPECT_THAT(f16.shape, ElementsAre(2, 2));
    EXPECT_EQ(f16.bytes, 8);
    EXPECT_FALSE(f16.is_quantised);
    EXPECT_TRUE(file->Find("q4")->is_quantised);
    EXPECT_EQ(file->Find("q4")->bytes, 18);
    EXPECT_EQ(file->Find("q4")->offset % 64, 0);
  }
}

TEST(GgufTest, AnyPieceEqualsThatPartOfTheWhole) {
  Random random(1);
  const int64_t size = 32 * 1200;  // More than is read at a time.
  std::vector<float> values(size);
  for (float& value : values) value = random.Gaussian();
  const TempFolder folder;
  for (const GgufType type : {kF32, kQ80, kQ40}) {
    GgufWriter writer;
    writer.Tensor("x", {size / 64, 64}, type, values);
    const auto file = Gguf::Open(folder.Write("x.gguf", writer.Bytes()));
    ASSERT_TRUE(file.ok()) << file.status();
    const std::vector<float> whole = Read(*file, "x");
    const SourceTensor& x = *file->Find("x");
    for (int i = 0; i < 50; ++i) {
      const int first = random.Int(0, static_cast<int>(size));
      std::vector<float> piece(random.Int(0, static_cast<int>(size) - first));
      ASSERT_TRUE(file->ReadFloats(x, first, absl::MakeSpan(piece)).ok());
      EXPECT_TRUE(
          std::equal(piece.begin(), piece.end(), whole.begin() + first));
    }
    std::vector<float> two(2);
    for (const int64_t first : {int64_t{-1}, size - 1, size + 1,
                                std::numeric_limits<int64_t>::max()}) {
      EXPECT_EQ(file->ReadFloats(x, first, absl::MakeSpan(two)).code(),
                absl::StatusCode::kOutOfRange);
    }
  }
}

TEST(GgufTest, NamesWhatIsWrong) {
  const auto tensor = [](const std::vector<int64_t>& shape, uint32_t type,
                         const std::string& bytes) {
    return GgufWriter().Tensor("t", shape, type, bytes).Bytes();
  };
  const std::string sixteen(16, '\0');
  const struct {
    std::string bytes;
    const char* message;
  } kCases[] = {
      {"", "the file would take 4 bytes at byte 0 of 0"},
      {"GGML" + sixteen, "does not begin with \"GGUF\""},
      {GgufWriter(1).Bytes(), "the version is 1; 2 and 3 are supported"},
      {GgufWriter(4).Bytes(), "the version is 4"},
      {GgufWriter(0x03000000).Bytes(), "is big-endian"},
      {GgufWriter().U32("k", 1).U32("k", 2).Bytes(), "key \"k\" occurs twice"},
      {GgufWriter().Key("k", Little(uint32_t{13})).Bytes(),
       "key \"k\" is of the unknown type 13"},
      {GgufWriter().Key("k", Little(uint32_t{7}) + "\x02").Bytes(),
       "key \"k\" is 2, which is neither false nor true"},
      {GgufWriter().Array("k", 9, 0, "").Bytes(), "arrays of arrays"},
      {GgufWriter().Array("k", 13, 0, "").Bytes(), "unknown type 13"},
      {GgufWriter().Array("k", 4, 50, sixteen).Bytes(),
       "key \"k\" would have 50 entries, but only"},
      {GgufWriter().Array("k", 0, 5000000, std::string(5000000, '\0')).Bytes(),
       "has 5000000 entries; all arrays may have"},
      {GgufWriter().U32("general.alignment", 24).Bytes(),
       "general.alignment is 24; a power of two"},
      {GgufWriter().U32("general.alignment", 0).Bytes(), "alignment is 0"},
      {GgufWriter().Text("general.alignment", "8").Bytes(), "alignment is"},
      {tensor({1, 1, 1, 1, 1}, kF32, "1234"), "tensor \"t\" has 5 dimensions"},
      {tensor({0}, kF32, ""), "tensor \"t\" has an extent of 0"},
      {tensor({-1}, kF32, ""), "has an extent of 18446744073709551615"},
      {tensor({int64_t{1} << 62, 4}, kF32, ""), "more bytes than can be"},
      {tensor({int64_t{1} << 61}, kF32, ""), "more bytes than can be"},
      {tensor({4}, 99, sixteen), "tensor \"t\" is of the unknown type 99"},
      {tensor({256}, 14, std::string(210, '\0')),
       "tensor \"t\" is of type Q6_K; supported are F32, F16, BF16, Q8_0"},
      {tensor({2, 16}, kQ80, std::string(34, '\0')),
       "its rows must be multiples of 32"},
      {tensor({8}, kF32, sixteen),
       "tensor \"t\" has 32 bytes from data byte 0 on, but the file has 16"},
      {tensor({1}, kF32, std::string(64, '\0')),
       "has 60 bytes behind its last tensor"},
      {GgufWriter()
           .Tensor("t", {4}, kF32, sixteen)
           .Tensor("t", {4}, kF32, sixteen)
           .Bytes(),
       "tensor \"t\" occurs twice"},
      {GgufWriter()
           .Tensor("t", {4}, kF32, std::string(64, '\0'))
           .Tensor("u", {4}, kF32, sixteen)
           .Bytes(),
       "tensor \"u\" begins at data byte 64; behind the tensor before it that "
       "is 32"},
      {GgufWriter()
           .Tensor("t", {16}, kF32, sixteen)
           .Tensor("u", {4}, kF32, std::string(64, '\0'))
           .Bytes(),
       "tensor \"u\" begins at data byte 32; behind the tensor before it that "
       "is 64"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(ErrorOf(test.bytes), HasSubstr(test.message));
  }
  std::string odd = tensor({1}, kF32, "1234");
  odd[GgufWriter().Tensor("t", {1}, kF32, "1234").Header().size() - 8] = 4;
  EXPECT_THAT(ErrorOf(odd), HasSubstr("data byte 4, which is no multiple"));
  const TempFolder folder;
  EXPECT_EQ(Gguf::Open(folder / "none").status().code(),
            absl::StatusCode::kNotFound);
}

TEST(GgufTest, EveryTruncationIsAnError) {
  const TempFolder folder;
  const std::string bytes = Sample().Bytes();
  ASSERT_EQ(ErrorOf(bytes), "");
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto file = Gguf::Open(folder.Write("x.gguf", bytes.substr(0, size)));
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_THAT(file.status().message(), HasSubstr("x.gguf: ")) << size;
  }
}

// Any eight bytes of the header may be a count, a length, an extent or an
// offset.
TEST(GgufTest, HugeNumbersAnywhereAreErrorsOrSound) {
  const TempFolder folder;
  const std::string bytes = Sample().Bytes();
  int refused = 0;
  for (const uint64_t huge : {uint64_t{1} << 63, uint64_t{1} << 32}) {
    for (size_t at = 0; at + 8 <= Sample().Header().size(); ++at) {
      std::string damaged = bytes;
      damaged.replace(at, 8, Little(huge));
      const auto file = Gguf::Open(folder.Write("x.gguf", damaged));
      refused += file.ok() ? 0 : 1;
      if (!file.ok()) continue;
      for (const auto& [name, tensor] : file->entries()) Read(*file, name);
    }
  }
  EXPECT_GT(refused, 200);
}

TEST(GgufTest, EveryFlippedBitIsAnErrorOrSound) {
  const TempFolder folder;
  const std::string bytes = Sample().Bytes();
  for (size_t at = 0; at < Sample().Header().size(); ++at) {
    for (const int bit : {0, 5}) {
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const auto file = Gguf::Open(folder.Write("x.gguf", damaged));
      if (!file.ok()) continue;
      for (const auto& [name, tensor] : file->entries()) Read(*file, name);
    }
  }
}

// ---- Split files ------------------------------------------------------------

class SplitTest : public ::testing::Test {
 protected:
  void Write(int part, const std::string& tensor, uint32_t number,
             uint32_t count, uint32_t tensors = 2,
             GgufWriter writer = GgufWriter()) {
    if (part == 1) writer.Text("general.architecture", "sample");
    writer.Number("split.no", 2, static_cast<uint16_t>(number))
        .Number("split.count", 2, static_cast<uint16_t>(count))
        .Number("split.tensors.count", 5, static_cast<int32_t>(tensors))
        .Tensor(tensor, {1}, kF32, {static_cast<float>(part)});
    folder_.Write(Name(part), writer.Bytes());
  }
  static std::string Name(int part) {
    return absl::StrCat("m-0000", part, "-of-00002.gguf");
  }
  std::string Error(const std::string& name) {
    return std::string(Gguf::Open(folder_ / name).status().message());
  }

  const TempFolder folder_;
};

TEST_F(SplitTest, PartsAreOneCheckpoint) {
  Write(1, "a", 0, 2);
  Write(2, "b", 1, 2);
  const auto file = Gguf::Open(folder_ / Name(1));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(Read(*file, "a"), ElementsAre(1));
  EXPECT_THAT(Read(*file, "b"), ElementsAre(2));
  EXPECT_EQ(file->PathOf(*file->Find("b")), folder_ / Name(2));
  EXPECT_EQ(file->metadata()["general.architecture"], "sample");
}

TEST_F(SplitTest, PartsThatDoNotFitAreErrors) {
  Write(1, "a", 0, 2);
  EXPECT_THAT(Error(Name(1)), HasSubstr(Name(2)));  // Missing.
  Write(2, "a", 1, 2);
  EXPECT_THAT(Error(Name(1)), HasSubstr("tensor \"a\" occurs twice"));
  Write(2, "b", 2, 2);
  EXPECT_THAT(Error(Name(1)), HasSubstr("split.no is 2"));
  Write(2, "b", 1, 3);
  EXPECT_THAT(Error(Name(1)), HasSubstr("split.count 3"));
  Write(2, "b", 1, 2);
  EXPECT_THAT(Error(Name(2)), HasSubstr("the first part is needed"));
  Write(1, "a", 1, 2);
  EXPECT_THAT(Error(Name(1)), HasSubstr(Name(1) + ": split.no is 1"));
  Write(1, "a", 0, 2, /*tensors=*/3);
  Write(2, "b", 1, 2, /*tensors=*/3);
  EXPECT_THAT(Error(Name(1)), HasSubstr("split.tensors.count is 3"));
}

TEST_F(SplitTest, WhatAPartSaysIsWhatTheFirstSays) {
  const auto write = [this](const GgufWriter& keys) {
    Write(1, "a", 0, 2);
    Write(2, "b", 1, 2, 2, keys);
  };
  const std::string part = folder_ / Name(2);
  write(GgufWriter().Text("general.architecture", "sample"));
  EXPECT_EQ(Error(Name(1)), "");
  write(GgufWriter().Alignment(64));  // Its own.
  EXPECT_EQ(Error(Name(1)), "");
  write(GgufWriter().Text("general.architecture", "other"));
  EXPECT_THAT(
      Error(Name(1)),
      HasSubstr(part + ": \"general.architecture\" is \"other\"; in " +
                (folder_ / Name(1)) + ", the first part, it is \"sample\""));
  write(GgufWriter().U32("sample.block_count", 7));
  EXPECT_THAT(Error(Name(1)),
              HasSubstr(part + ": \"sample.block_count\" is 7; in "));
  EXPECT_THAT(Error(Name(1)), HasSubstr("it is absent"));
  Write(2, "b", 1, 2, /*tensors=*/5);
  EXPECT_THAT(Error(Name(1)),
              HasSubstr(part + ": \"split.tensors.count\" is 5; in "));
}

TEST_F(SplitTest, AFileOfOnePartSaysNothingElse) {
  Write(1, "a", 0, 1, /*tensors=*/1);
  EXPECT_EQ(Error(Name(1)), "");
  Write(1, "a", 1, 1, /*tensors=*/1);
  EXPECT_THAT(Error(Name(1)), HasSubstr("split.no is 1"));
  Write(1, "a", 0, 1, /*tensors=*/2);
  EXPECT_THAT(Error(Name(1)), HasSubstr("split.tensors.count is 2"));
}

}  // namespace
}  // namespace deltaedge
