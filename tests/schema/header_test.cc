// SPDX-License-Identifier: Apache-2.0

#include "schema/header.h"

#include <cstdint>
#include <cstring>
#include <string>

#include "gtest/gtest.h"

namespace deltaedge {
namespace schema {
namespace {

TEST(HeaderTest, BytesAreThoseOfFormatMd) {
  FileHeader header;
  header.index_bytes = 0x0102030405060708;
  header.first_segment = 0x1112131415161718;
  header.segment_bytes = 0x2122232425262728;
  header.index_checksum = 0x31323334;
  uint8_t bytes[kHeaderBytes];
  std::memset(bytes, 0xee, sizeof(bytes));
  SerializeHeader(header, bytes);
  const std::string expected =
      std::string("DELTAEDG") + "\x08\x07\x06\x05\x04\x03\x02\x01" +
      "\x18\x17\x16\x15\x14\x13\x12\x11" + "\x28\x27\x26\x25\x24\x23\x22\x21" +
      std::string("\x01\0\0\0", 4) + std::string(24, '\0') + "\x34\x33\x32\x31";
  ASSERT_EQ(expected.size(), kHeaderBytes);
  EXPECT_EQ(std::memcmp(bytes, expected.data(), kHeaderBytes), 0);

  FileHeader read;
  ASSERT_EQ(ParseHeader(bytes, &read), HeaderResult::kOk);
  EXPECT_EQ(read.version, kHeaderVersion);
  EXPECT_EQ(read.index_bytes, header.index_bytes);
  EXPECT_EQ(read.first_segment, header.first_segment);
  EXPECT_EQ(read.segment_bytes, header.segment_bytes);
  EXPECT_EQ(read.index_checksum, header.index_checksum);
}

TEST(HeaderTest, WhatIsNotOursIsTold) {
  const auto parse = [](uint32_t position, uint8_t value) {
    uint8_t bytes[kHeaderBytes];
    SerializeHeader(FileHeader(), bytes);
    bytes[position] = value;
    FileHeader read;
    read.index_bytes = 99;
    const HeaderResult result = ParseHeader(bytes, &read);
    EXPECT_EQ(read.index_bytes, result == HeaderResult::kOk ? 0u : 99u);
    return result;
  };
  for (uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(parse(i, 'x'), HeaderResult::kNotOurs) << i;
  }
  EXPECT_EQ(parse(kVersionOffset, 1), HeaderResult::kOk);
  EXPECT_EQ(parse(kVersionOffset, 2), HeaderResult::kNewerVersion);
  EXPECT_EQ(parse(kVersionOffset + 3, 1), HeaderResult::kNewerVersion);
  EXPECT_EQ(parse(kVersionOffset, 0), HeaderResult::kDamaged);
  for (uint32_t i = 0; i < kReservedBytes; ++i) {
    EXPECT_EQ(parse(kReservedOffset + i, 1), HeaderResult::kDamaged) << i;
  }
}

}  // namespace
}  // namespace schema
}  // namespace deltaedge
