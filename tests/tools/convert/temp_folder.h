// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TOOLS_CONVERT_TEMP_FOLDER_H_
#define DELTAEDGE_TESTS_TOOLS_CONVERT_TEMP_FOLDER_H_

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "gtest/gtest.h"

namespace deltaedge::testing {

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string((std::istreambuf_iterator<char>(file)),
                     std::istreambuf_iterator<char>());
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
}

// A new empty folder of the running test, removed with the object.
class TempFolder {
 public:
  TempFolder() {
    const auto* const test =
        ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = test->name();
    for (char& c : name) c = c == '/' ? '_' : c;
    static int count = 0;
    path_ = ::testing::TempDir() + "/" + name + std::to_string(count++);
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  // The path of `name` within, whether it exists or not.
  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }
  // Writes a file and gives its path.
  std::string Write(const std::string& name, const std::string& bytes) const {
    WriteBytes(*this / name, bytes);
    return *this / name;
  }
  // Copies all files of another folder here, writable.
  void CopyFrom(const std::string& folder) const {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.is_regular_file()) {
        Write(entry.path().filename().string(),
              ReadBytes(entry.path().string()));
      }
    }
  }

  // Names of the files within, for telling what was left behind.
  size_t FileCount() const {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      static_cast<void>(entry);
      ++count;
    }
    return count;
  }

 private:
  std::string path_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TOOLS_CONVERT_TEMP_FOLDER_H_
