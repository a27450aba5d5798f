// SPDX-License-Identifier: Apache-2.0

#include "engine/base/mmap_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "tests/testing/resident_bytes.h"

namespace deltaedge {
namespace {

class MmapFileTest : public ::testing::Test {
 protected:
  MmapFileTest()
      : folder_(
            ::testing::TempDir() + "/mmap_" +
            ::testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(folder_);
  }
  ~MmapFileTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  void ExpectError(const std::string& path, absl::StatusCode code) {
    const absl::Status status = MmapFile::Open(path).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_NE(status.message().find(path), std::string::npos) << status;
  }

  const std::string folder_;
};

TEST_F(MmapFileTest, MapsTheWholeFile) {
  std::string text(100001, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7);
  const std::string path = Write("file", text);
  absl::StatusOr<MmapFile> file = MmapFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->size(), 100001);
  EXPECT_EQ(file->bytes().size(), text.size());
  EXPECT_EQ(std::memcmp(file->data(), text.data(), text.size()), 0);
  file->Evict();
  EXPECT_EQ(std::memcmp(file->data(), text.data(), text.size()), 0);

  const MmapFile moved = *std::move(file);
  EXPECT_EQ(file->data(), nullptr);
  EXPECT_EQ(file->size(), 0);
  EXPECT_EQ(std::memcmp(moved.data(), text.data(), text.size()), 0);
}

TEST_F(MmapFileTest, CopiesAreNotResident) {
  constexpr size_t kSize = size_t{8} << 20;
  std::string text(kSize, 'x');
  for (size_t i = 0; i < kSize; ++i) text[i] = static_cast<char>(i * 7 + i / 9);
  absl::StatusOr<MmapFile> file = MmapFile::Open(Write("file", text));
  ASSERT_TRUE(file.ok()) << file.status();
  file->Evict();
  file->UseHugePages();
  for (size_t begin = 5; begin + 1000 < kSize; begin += 100003) {
    char copy[1000];
    file->Copy(file->data() + begin, sizeof(copy), copy);
    ASSERT_EQ(std::memcmp(copy, text.data() + begin, sizeof(copy)), 0);
  }
  EXPECT_EQ(testing::ResidentBytes(file->data()), 0);
  EXPECT_EQ(static_cast<char>(file->data()[kSize / 2]), text[kSize / 2]);
  EXPECT_GT(testing::ResidentBytes(file->data()), 0);
}

TEST_F(MmapFileTest, OutlivesItsName) {
  const std::string path = Write("file", "old");
  absl::StatusOr<MmapFile> file = MmapFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::rename(Write("new", "new!"), path);
  EXPECT_EQ(std::memcmp(file->data(), "old", 3), 0);
  EXPECT_EQ(MmapFile::Open(path)->size(), 4);
}

TEST_F(MmapFileTest, MapsBeyondFourGibibytes) {
  const std::string path = Write("large", "x");
  const int64_t size = (int64_t{5} << 30) + 3;
  if (truncate(path.c_str(), size) != 0) GTEST_SKIP() << "no sparse files";
  absl::StatusOr<MmapFile> file = MmapFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), size);
  EXPECT_EQ(file->data()[size - 1], std::byte{0});
}

TEST_F(MmapFileTest, NamesWhatIsWrong) {
  ExpectError(folder_ + "/absent", absl::StatusCode::kNotFound);
  ExpectError(Write("file", "x") + "/below", absl::StatusCode::kNotFound);
  ExpectError("", absl::StatusCode::kNotFound);
  ExpectError(folder_, absl::StatusCode::kInvalidArgument);
  ExpectError("/dev/null", absl::StatusCode::kInvalidArgument);
  ExpectError(Write("empty", ""), absl::StatusCode::kDataLoss);
  ExpectError(folder_ + "/" + std::string(5000, 'n'),
              absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MmapFile::Open(std::string("a\0b", 3)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(MmapFileTest, LeavesTheStandardStreamsAlone) {
  const std::string path = Write("file", "text");
  const int input = dup(STDIN_FILENO);
  close(STDIN_FILENO);
  const absl::StatusOr<MmapFile> file = MmapFile::Open(path);
  char byte;
  EXPECT_EQ(read(STDIN_FILENO, &byte, 1), -1);
  if (input >= 0) {
    dup2(input, STDIN_FILENO);
    close(input);
  }
  EXPECT_TRUE(file.ok()) << file.status();
}

TEST_F(MmapFileTest, DoesNotWaitForAPipe) {
  const std::string path = folder_ + "/pipe";
  if (mkfifo(path.c_str(), 0600) != 0) GTEST_SKIP() << "no pipes here";
  ExpectError(path, absl::StatusCode::kInvalidArgument);
}

TEST_F(MmapFileTest, NeedsPermission) {
  const std::string path = Write("secret", "x");
  ASSERT_EQ(chmod(path.c_str(), 0), 0);
  if (access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "root may read all";
  ExpectError(path, absl::StatusCode::kPermissionDenied);
}

}  // namespace
}  // namespace deltaedge
