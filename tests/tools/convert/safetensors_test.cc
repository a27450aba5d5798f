// SPDX-License-Identifier: Apache-2.0

#include "tools/convert/safetensors.h"

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"
#include "tests/tools/convert/safetensors_writer.h"
#include "tests/tools/convert/temp_folder.h"
#include "tools/convert/tensor_source.h"

namespace deltaedge {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Random;
using testing::ReadBytes;
using testing::SafetensorsBytes;
using testing::SafetensorsLength;
using testing::SafetensorsWriter;
using testing::TempFolder;

constexpr char kGoldens[] = "tests/testdata/golden/";

std::string LittleEndian(const std::vector<uint16_t>& values) {
  std::string bytes;
  for (const uint16_t value : values) {
    bytes.push_back(static_cast<char>(value & 0xFF));
    bytes.push_back(static_cast<char>(value >> 8));
  }
  return bytes;
}

TEST(SafetensorsTest, ReadsEveryFloatTypeWithoutLoss) {
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.AddFloats("f32", {3}, {1.5f, -0.0f, 1e-42f});
  writer.Add("bf16", "BF16", {4},
             LittleEndian({0x3F80, 0xC049, 0x0001, 0xFF80}));
  writer.Add("f16", "F16", {2, 4},
             LittleEndian({0x3C00, 0xC000, 0x7BFF, 0x0400,  // normal
                           0x0001, 0x83FF, 0x8000, 0x7C00}));
  const auto file =
      Safetensors::OpenFile(folder.Write("a.safetensors", writer.Bytes()));
  ASSERT_TRUE(file.ok()) << file.status();

  const auto f32 = file->ReadFloats("f32");
  ASSERT_TRUE(f32.ok()) << f32.status();
  EXPECT_THAT(*f32, ElementsAre(1.5f, 0.0f, 1e-42f));
  EXPECT_TRUE(std::signbit((*f32)[1]));

  const auto bf16 = file->ReadFloats("bf16");
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  EXPECT_THAT(*bf16, ElementsAre(1.0f, -3.140625f, 0x1p-133f, -INFINITY));

  const auto f16 = file->ReadFloats("f16");
  ASSERT_TRUE(f16.ok()) << f16.status();
  EXPECT_THAT(*f16, ElementsAre(1.0f, -2.0f, 65504.0f, 0x1p-14f, 0x1p-24f,
                                -1023 * 0x1p-24f, 0.0f, INFINITY));
  EXPECT_TRUE(std::signbit((*f16)[6]));
}

TEST(SafetensorsTest, EveryHalfFloatHasItsValue) {
  std::vector<uint16_t> patterns(1 << 16);
  for (size_t i = 0; i < patterns.size(); ++i) {
    patterns[i] = static_cast<uint16_t>(i);
  }
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.Add("f16", "F16", {1 << 16}, LittleEndian(patterns));
  const auto file =
      Safetensors::OpenFile(folder.Write("a.safetensors", writer.Bytes()));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto values = file->ReadFloats("f16");
  ASSERT_TRUE(values.ok()) << values.status();
  for (int i = 0; i < 1 << 16; ++i) {
    const int exponent = i >> 10 & 31;
    const int fraction = i & 1023;
    const double sign = i >> 15 == 0 ? 1 : -1;
    const float value = (*values)[i];
    if (exponent == 31) {
      EXPECT_EQ(std::isinf(value), fraction == 0) << i;
      EXPECT_EQ(std::isnan(value), fraction != 0) << i;
    } else {
      EXPECT_EQ(value, sign * (exponent == 0 ? std::ldexp(fraction, -24)
                                             : std::ldexp(1024 + fraction,
                                                          exponent - 25)))
          << i;
    }
    EXPECT_EQ(std::signbit(value), i >> 15 == 1) << i;
  }
}

TEST(SafetensorsTest, ReadsIntegers) {
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.Add("i64", "I64", {}, std::string("\xFE\xFF\xFF\xFF\xFF\xFF\xFF\xFF"));
  writer.Add("i32", "I32", {2}, std::string("\xFF\xFF\xFF\xFF\1\0\0\0", 8));
  writer.Add("u32", "U32", {1}, std::string("\xFF\xFF\xFF\xFF"));
  writer.Add("i16", "I16", {1}, "\xFF\xFF");
  writer.Add("u16", "U16", {1}, "\xFF\xFF");
  writer.Add("i8", "I8", {1}, "\xFF");
  writer.Add("u8", "U8", {1, 1, 1}, "\xFF");
  writer.Add("bool", "BOOL", {2}, std::string("\0\1", 2));
  writer.Add("none", "I32", {0, 7}, "");
  const auto file =
      Safetensors::OpenFile(folder.Write("a.safetensors", writer.Bytes()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(*file->ReadInts("i64"), ElementsAre(-2));
  EXPECT_THAT(*file->ReadInts("i32"), ElementsAre(-1, 1));
  EXPECT_THAT(*file->ReadInts("u32"), ElementsAre(4294967295));
  EXPECT_THAT(*file->ReadInts("i16"), ElementsAre(-1));
  EXPECT_THAT(*file->ReadInts("u16"), ElementsAre(65535));
  EXPECT_THAT(*file->ReadInts("i8"), ElementsAre(-1));
  EXPECT_THAT(*file->ReadInts("u8"), ElementsAre(255));
  EXPECT_THAT(*file->ReadInts("bool"), ElementsAre(0, 1));
  EXPECT_THAT(*file->ReadInts("none"), ElementsAre());
  EXPECT_EQ(file->Find("i64")->shape.size(), 0u);
  EXPECT_EQ(file->Find("nothing"), nullptr);
}

TEST(SafetensorsTest, AnyPieceEqualsThatPartOfTheWhole) {
  Random random(1);
  const int64_t size = 70000;  // More than one piece of the reader's own.
  const std::vector<float> values = random.Uniforms(size);
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.AddFloats("before", {5}, random.Uniforms(5));
  writer.AddFloats("x", {size}, values);
  writer.AddFloats("behind", {5}, random.Uniforms(5));
  const auto file =
      Safetensors::OpenFile(folder.Write("a.safetensors", writer.Bytes()));
  ASSERT_TRUE(file.ok()) << file.status();
  const SourceTensor& x = *file->Find("x");
  for (int i = 0; i < 50; ++i) {
    const int first = random.Int(0, size);
    std::vector<float> piece(random.Int(0, static_cast<int>(size) - first));
    ASSERT_TRUE(file->ReadFloats(x, first, absl::MakeSpan(piece)).ok());
    EXPECT_EQ(piece, std::vector<float>(values.begin() + first,
                                        values.begin() + first + piece.size()));
  }
  std::vector<float> two(2);
  for (const int64_t first : {int64_t{-1}, size - 1, size, INT64_MAX}) {
    EXPECT_EQ(file->ReadFloats(x, first, absl::MakeSpan(two)).code(),
              absl::StatusCode::kOutOfRange)
        << first;
  }
}

TEST(SafetensorsTest, RefusesToReadOneKindAsAnother) {
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.AddFloats("f", {1}, {1.0f});
  writer.Add("i", "I32", {1}, "1234");
  writer.Add("d", "F64", {1}, "12345678");
  writer.Add("e", "F8_E4M3", {3}, "123");
  const auto file =
      Safetensors::OpenFile(folder.Write("a.safetensors", writer.Bytes()));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->ReadInts("f").status().message(), HasSubstr("F32"));
  EXPECT_THAT(file->ReadFloats("i").status().message(), HasSubstr("I32"));
  EXPECT_THAT(file->ReadFloats("d").status().message(), HasSubstr("F64"));
  EXPECT_THAT(file->ReadFloats("e").status().message(), HasSubstr("F8_E4M3"));
  EXPECT_EQ(file->ReadFloats("x").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(file->Find("f")->is_float);
  EXPECT_FALSE(file->Find("i")->is_float);
  EXPECT_FALSE(file->Find("d")->is_float);
}

struct BadFile {
  const char* what;
  std::string bytes;
  std::string message;
};

std::string Header(absl::string_view entries, int data_bytes = 0) {
  return SafetensorsBytes(absl::StrCat("{", entries, "}"),
                          std::string(data_bytes, 'x'));
}

TEST(SafetensorsTest, RefusesUnsoundFilesByName) {
  const std::string good =
      R"("t":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  std::string nested(10000, '[');
  std::string wide = "\"t\":{\"dtype\":\"F32\",\"shape\":[1";
  for (int i = 0; i < 100000; ++i) wide += ",1";
  wide += "],\"data_offsets\":[0,4]}";
  const BadFile files[] = {
      {"empty", "", "has 0 bytes"},
      {"seven bytes", "1234567", "has 7 bytes"},
      {"length only", SafetensorsLength(0), "not JSON"},
      {"length of 2^64-1", SafetensorsLength(UINT64_MAX) + "{}",
       "18446744073709551615"},
      {"length beyond the file", SafetensorsLength(3) + "{}", "cut short"},
      {"another kind of file", "GGUF\3\0\0\0 and more of it", "safetensors"},
      {"not JSON", SafetensorsBytes("{", ""), "not JSON"},
      {"broken UTF-8", Header("\"\xFF\":1"), "not JSON"},
      {"array", SafetensorsBytes("[]", ""), "not an object"},
      {"number", SafetensorsBytes("1", ""), "not an object"},
      {"more behind the header's object", SafetensorsBytes("{}{}", ""),
       "not JSON"},
      {"nested arrays", SafetensorsBytes(nested, ""), "not an object"},
      {"nested in a tensor", Header("\"t\":{\"shape\":" + nested), "\"t\""},
      {"nested in an object", Header("\"t\":" + std::string(10000, '{')),
       "not JSON"},
      {"tensor is a number", Header("\"t\":1"), "\"t\""},
      {"metadata twice", Header(R"("__metadata__":{},"__metadata__":{})"),
       "__metadata__"},
      {"metadata is no text", Header(R"("__metadata__":{"a":1})"),
       "__metadata__"},
      {"metadata of objects", Header(R"("__metadata__":{"a":{}})"),
       "__metadata__"},
      {"no name", Header(R"("":{})"), "empty name"},
      {"no dtype", Header(R"("t":{"shape":[],"data_offsets":[0,0]})"),
       "no dtype"},
      {"no shape", Header(R"("t":{"dtype":"F32","data_offsets":[0,0]})"),
       "no shape"},
      {"no offsets", Header(R"("t":{"dtype":"F32","shape":[]})"),
       "no data_offsets"},
      {"unknown key", Header(R"("t":{"x":[1]})"), "unknown key \"x\""},
      {"dtype twice", Header(R"("t":{"dtype":"F32","dtype":"F32"})"),
       "two keys \"dtype\""},
      {"shape twice", Header(R"("t":{"shape":[],"shape":[]})"),
       "two keys \"shape\""},
      {"offsets twice",
       Header(R"("t":{"data_offsets":[0,0],"data_offsets":[0,0]})"),
       "two keys \"data_offsets\""},
      {"unknown dtype",
       Header(R"("t":{"dtype":"Q4","shape":[2],"data_offsets":[0,1]})", 1),
       "unknown type \"Q4\""},
      {"dtype is a number", Header(R"("t":{"dtype":1})"), "dtype holds 1"},
      {"negative dimension", Header(R"("t":{"shape":[-1]})"), "-1"},
      {"fraction of a dimension", Header(R"("t":{"shape":[1.5]})"), "1.5"},
      {"dimension of 2^63", Header(R"("t":{"shape":[9223372036854775808]})"),
       "9223372036854775808"},
      {"dimension beyond 64 bits",
       Header(R"("t":{"shape":[99999999999999999999]})"), "\"t\""},
      {"shape is a text", Header(R"("t":{"shape":"2"})"), "shape holds"},
      {"three offsets", Header(R"("t":{"data_offsets":[0,1,2]})"), "has 3"},
      {"one offset", Header(R"("t":{"data_offsets":[0]})"), "has 1"},
      {"many dimensions", Header(wide, 4), "more than 8"},
      {"begin behind end",
       Header(R"("t":{"dtype":"F32","shape":[0],"data_offsets":[8,4]})", 8),
       "begins at 8"},
      {"end behind the file",
       Header(R"("t":{"dtype":"F32","shape":[3],"data_offsets":[0,12]})", 8),
       "ends at data byte 12"},
      {"product of the shape wraps",
       Header(R"("t":{"dtype":"F32","shape":[4294967296,4294967296,4],)"
              R"("data_offsets":[0,0]})"),
       "more bytes than can be counted"},
      {"bytes wrap",
       Header(R"("t":{"dtype":"F32","shape":[4611686018427387904],)"
              R"("data_offsets":[0,0]})"),
       "more bytes than can be counted"},
      {"zero does not hide a wrapping product",
       Header(R"("t":{"dtype":"F32","shape":[4294967296,4294967296,0],)"
              R"("data_offsets":[0,0]})"),
       "more bytes than can be counted"},
      {"bytes do not fit the shape",
       Header(R"("t":{"dtype":"F32","shape":[3],"data_offsets":[0,8]})", 8),
       "has 12 bytes, but its data_offsets span 8"},
      {"name twice",
       Header(good + "," +
                  R"("t":{"dtype":"F32","shape":[1],"data_offsets":[8,12]})",
              12),
       "occurs twice"},
      {"overlap",
       Header(good + "," +
                  R"("u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]})",
              8),
       "inside"},
      {"the same bytes twice",
       Header(good + "," +
                  R"("u":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})",
              8),
       "inside"},
      {"gap",
       Header(good + "," +
                  R"("u":{"dtype":"F32","shape":[1],"data_offsets":[12,16]})",
              16),
       "not behind"},
      {"cut by one byte", Header(good, 7), "ends at data byte 8"},
      {"one byte too many", Header(good, 9), "1 bytes behind"},
  };
  const TempFolder folder;
  for (const BadFile& bad : files) {
    SCOPED_TRACE(bad.what);
    const auto file =
        Safetensors::OpenFile(folder.Write("bad.safetensors", bad.bytes));
    ASSERT_FALSE(file.ok());
    EXPECT_THAT(file.status().message(), HasSubstr("bad.safetensors: "));
    EXPECT_THAT(file.status().message(), HasSubstr(bad.message));
  }
  EXPECT_TRUE(
      Safetensors::OpenFile(folder.Write("good.safetensors", Header(good, 8)))
          .ok());
  EXPECT_TRUE(Safetensors::OpenFile(folder.Write("empty.safetensors",
                                                 SafetensorsBytes("{}  ", "")))
                  .ok());
}

TEST(SafetensorsTest, EveryTruncationIsAnError) {
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.AddFloats("a", {2, 3}, {1, 2, 3, 4, 5, 6});
  writer.Add("b", "I32", {1}, "1234");
  const std::string bytes = writer.Bytes();
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto file = Safetensors::OpenFile(
        folder.Write("cut.safetensors", bytes.substr(0, length)));
    EXPECT_FALSE(file.ok()) << length;
  }
}

// Whatever a header says, the answer is an error or tensors within the file.
TEST(SafetensorsTest, EveryFlippedByteIsAnErrorOrSound) {
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.AddFloats("a", {2, 3}, {1, 2, 3, 4, 5, 6});
  writer.Add("b", "I32", {1}, "1234");
  const std::string bytes = writer.Bytes();
  const size_t header_end = bytes.size() - 28;
  Random random(2);
  for (size_t i = 0; i < header_end; ++i) {
    for (const int flip : {1, 2, 16, 128, random.Int(1, 255)}) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ flip);
      const auto file =
          Safetensors::OpenFile(folder.Write("x.safetensors", flipped));
      if (!file.ok()) continue;
      for (const auto& [name, entry] : file->entries()) {
        const absl::Status read = entry.is_float
                                      ? file->ReadFloats(name).status()
                                      : file->ReadInts(name).status();
        EXPECT_NE(read.code(), absl::StatusCode::kDataLoss) << read;
        EXPECT_NE(read.code(), absl::StatusCode::kOutOfRange) << read;
      }
    }
  }
}

TEST(SafetensorsTest, FileThatShrinksIsAnErrorAndNoSignal) {
  const TempFolder folder;
  SafetensorsWriter writer;
  writer.AddFloats("a", {100000}, std::vector<float>(100000));
  const std::string path = folder.Write("a.safetensors", writer.Bytes());
  const auto file = Safetensors::OpenFile(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(truncate(path.c_str(), 1000), 0);
  const absl::Status status = file->ReadFloats("a").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(status.message(), HasSubstr("a.safetensors"));
}

TEST(SafetensorsTest, SaysWhatTheFileSystemSays) {
  const TempFolder folder;
  EXPECT_EQ(Safetensors::OpenFile(folder / "none").status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_THAT(Safetensors::OpenFile(folder.path()).status().message(),
              HasSubstr("not a regular file"));
  EXPECT_THAT(Safetensors::OpenFile("/dev/zero").status().message(),
              HasSubstr("not a regular file"));
}

class SafetensorsFolderTest : public ::testing::Test {
 protected:
  SafetensorsFolderTest() {
    SafetensorsWriter first, second;
    first.AddFloats("a", {1}, {1});
    first.AddFloats("b", {1}, {2});
    second.AddFloats("c", {1}, {3});
    folder_.Write("1.safetensors", first.Bytes());
    folder_.Write("2.safetensors", second.Bytes());
  }

  void Index(absl::string_view map) {
    folder_.Write("model.safetensors.index.json",
                  absl::StrCat("{\"metadata\":{\"total_size\":12},"
                               "\"weight_map\":{",
                               map, "}}"));
  }
  std::string Error() {
    return std::string(
        Safetensors::OpenFolder(folder_.path()).status().message());
  }

  const TempFolder folder_;
};

TEST_F(SafetensorsFolderTest, ReadsShards) {
  Index(R"("a":"1.safetensors","b":"1.safetensors","c":"2.safetensors")");
  const auto checkpoint = Safetensors::OpenFolder(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->entries().size(), 3u);
  EXPECT_EQ(checkpoint->files().size(), 2u);
  EXPECT_THAT(*checkpoint->ReadFloats("a"), ElementsAre(1));
  EXPECT_THAT(*checkpoint->ReadFloats("b"), ElementsAre(2));
  EXPECT_THAT(*checkpoint->ReadFloats("c"), ElementsAre(3));
}

TEST_F(SafetensorsFolderTest, PrefersTheSingleFile) {
  Index(R"("a":"none.safetensors")");
  SafetensorsWriter writer;
  writer.AddFloats("only", {1}, {4});
  folder_.Write("model.safetensors", writer.Bytes());
  const auto checkpoint = Safetensors::OpenFolder(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_THAT(*checkpoint->ReadFloats("only"), ElementsAre(4));
}

TEST_F(SafetensorsFolderTest, RefusesWhereIndexAndShardsDisagree) {
  EXPECT_THAT(Error(), HasSubstr("neither model.safetensors nor"));
  Index(R"("a":"1.safetensors","b":"1.safetensors","c":"3.safetensors")");
  EXPECT_THAT(Error(), HasSubstr("\"3.safetensors\" with 1 tensors is miss"));
  Index(R"("a":"1.safetensors","b":"1.safetensors","d":"2.safetensors")");
  EXPECT_THAT(Error(), HasSubstr("\"d\" is not in"));
  Index(R"("a":"2.safetensors","b":"1.safetensors","c":"2.safetensors")");
  EXPECT_THAT(Error(), HasSubstr("\"a\" is not in"));
  Index(R"("a":"1.safetensors","c":"2.safetensors")");
  EXPECT_THAT(Error(), HasSubstr("\"b\" is not listed"));
  Index(R"("a":"../1.safetensors")");
  EXPECT_THAT(Error(), HasSubstr("no file name"));
  Index(R"("a":7)");
  EXPECT_THAT(Error(), HasSubstr("\"a\" is in 7"));
  Index(R"("a":"1.bin")");
  EXPECT_THAT(Error(), HasSubstr("\"1.bin\""));
  Index(R"("a":"1.safetensors","a":"2.safetensors")");
  EXPECT_THAT(Error(), HasSubstr("\"a\" occurs twice"));
  folder_.Write("model.safetensors.index.json", "{}");
  EXPECT_THAT(Error(), HasSubstr("weight_map"));
  folder_.Write("model.safetensors.index.json", "[]");
  EXPECT_THAT(Error(), HasSubstr("weight_map"));
  folder_.Write("model.safetensors.index.json", std::string(10000, '['));
  EXPECT_THAT(Error(), HasSubstr("deeper than 64"));
  folder_.Write("model.safetensors.index.json", "");
  EXPECT_THAT(Error(), HasSubstr("not sound JSON"));
}

TEST_F(SafetensorsFolderTest, RefusesATensorInTwoShards) {
  SafetensorsWriter again;
  again.AddFloats("a", {1}, {9});
  again.AddFloats("c", {1}, {3});
  folder_.Write("2.safetensors", again.Bytes());
  Index(R"("a":"1.safetensors","b":"1.safetensors","c":"2.safetensors")");
  EXPECT_THAT(Error(), HasSubstr("\"a\" is also in"));
}

TEST_F(SafetensorsFolderTest, RefusesAnUnsoundShard) {
  Index(R"("a":"1.safetensors","b":"1.safetensors","c":"2.safetensors")");
  const std::string bytes = ReadBytes(folder_ / "2.safetensors");
  folder_.Write("2.safetensors", bytes.substr(0, bytes.size() - 1));
  EXPECT_THAT(Error(), HasSubstr("2.safetensors: tensor \"c\" ends"));
}

TEST(SafetensorsTest, ReadsGoldens) {
  const auto golden = Safetensors::OpenFile(
      absl::StrCat(kGoldens, "tiny-qwen35/golden.safetensors"));
  ASSERT_TRUE(golden.ok()) << golden.status();
  const auto ids = golden->ReadInts("p2.ids");
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(ids->size(), 3u);
  const auto logits = golden->ReadFloats("p2.logits");
  ASSERT_TRUE(logits.ok()) << logits.status();
  EXPECT_EQ(logits->size(), 3u * 512);

  const auto shards =
      Safetensors::OpenFolder(absl::StrCat(kGoldens, "tiny-qwen35-published"));
  ASSERT_TRUE(shards.ok()) << shards.status();
  EXPECT_EQ(shards->files().size(), 3u);
}

}  // namespace
}  // namespace deltaedge
