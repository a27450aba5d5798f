// SPDX-License-Identifier: Apache-2.0

#include "engine/base/partial_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "engine/base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace deltaedge {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class PartialFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = absl::StrCat(
        ::testing::TempDir(), "/",
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    ASSERT_EQ(mkdir(folder_.c_str(), 0777), 0);
    // A process that is gone.
    gone_ = fork();
    if (gone_ == 0) _exit(0);
    ASSERT_EQ(waitpid(gone_, nullptr, 0), gone_);
    SetLogSink([this](LogLevel level, absl::string_view message) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(message);
    });
  }
  void TearDown() override { SetLogSink(nullptr); }

  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  std::string Write(const std::string& name) const {
    const std::string path = Path(name);
    const int file = open(path.c_str(), O_WRONLY | O_CREAT, 0666);
    EXPECT_GE(file, 0) << name;
    EXPECT_EQ(write(file, "123", 3), 3);
    close(file);
    return path;
  }
  static bool Exists(const std::string& path) {
    struct stat info;
    return lstat(path.c_str(), &info) == 0;
  }
  // Creates one of "model" and closes it.
  std::string Create() const {
    std::string partial;
    const absl::StatusOr<int> file = CreatePartialFile(Path("model"), &partial);
    EXPECT_TRUE(file.ok()) << file.status();
    if (file.ok()) close(*file);
    return partial;
  }

  std::string folder_;
  pid_t gone_ = 0;
  std::vector<std::string> warnings_;
};

TEST_F(PartialFileTest, EveryOneIsNew) {
  std::string first, second;
  const auto a = CreatePartialFile(Path("model"), &first);
  const auto b = CreatePartialFile(Path("model"), &second);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(first, absl::StrCat(Path("model.partial-"), getpid(), "-0"));
  EXPECT_EQ(second, absl::StrCat(Path("model.partial-"), getpid(), "-1"));
  EXPECT_EQ(write(*a, "1", 1), 1);
  char c = 0;
  EXPECT_EQ(pread(*a, &c, 1, 0), 1);
  close(*a);
  close(*b);
  EXPECT_TRUE(Exists(first) && Exists(second));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(PartialFileTest, WhatAKilledProcessLeftIsRemoved) {
  const std::string left = Write(absl::StrCat("model.partial-", gone_, "-0"));
  const std::string more = Write(absl::StrCat("model.partial-", gone_, "-17"));
  EXPECT_TRUE(Exists(Create()));
  EXPECT_FALSE(Exists(left) || Exists(more));
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_THAT(warnings_[0] + warnings_[1], HasSubstr(left + "' of 3 bytes"));
}

// As in containers, whose first process is always number 1.
TEST_F(PartialFileTest, WhatAKilledProcessOfThisNumberLeftIsRemoved) {
  const std::string own = absl::StrCat("model.partial-", getpid());
  const std::string left = Write(own + "-0");
  const std::string more = Write(own + "-1");
  EXPECT_EQ(Create(), left);
  EXPECT_FALSE(Exists(more));
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("of 3 bytes"), HasSubstr("of")));
}

TEST_F(PartialFileTest, APathWithoutAFolderIsHere) {
  ASSERT_EQ(chdir(folder_.c_str()), 0);
  const std::string left = Write(absl::StrCat("m.partial-", gone_, "-0"));
  std::string partial;
  const auto file = CreatePartialFile("m", &partial);
  ASSERT_TRUE(file.ok()) << file.status();
  close(*file);
  EXPECT_FALSE(Exists(left));
}

TEST_F(PartialFileTest, NothingElseIsRemoved) {
  const std::string gone = absl::StrCat(gone_);
  std::vector<std::string> kept;
  for (const char* name :
       {"model.partial-LIVES-0", "model.partial-GONE", "model.partial-GONE-",
        "model.partial-GONE-0x", "model.partial-GONE-00",
        "model.partial-+GONE-0", "model.partial-GONE--0",
        "model.partial-GONE-0-0", "model.partial--GONE-0", "model.partial-0-0",
        "model.partial-", "mode.partial-GONE-0", "model2.partial-GONE-0",
        "my-model.partial-GONE-0", "model"}) {
    kept.push_back(Write(absl::StrReplaceAll(
        name, {{"LIVES", absl::StrCat(getppid())}, {"GONE", gone}})));
  }
  const std::string name = "model.partial-" + gone + "-";
  kept.push_back(Path(name + "1"));
  ASSERT_EQ(mkdir(kept.back().c_str(), 0777), 0);
  kept.push_back(Path(name + "2"));
  ASSERT_EQ(symlink(kept[0].c_str(), kept.back().c_str()), 0);
  kept.push_back(Path(name + "3"));
  ASSERT_EQ(mkfifo(kept.back().c_str(), 0666), 0);
  Create();
  for (const std::string& path : kept) EXPECT_TRUE(Exists(path)) << path;
  EXPECT_THAT(warnings_, IsEmpty());
}

// A process of another system may have a number that is nobody's here.
TEST_F(PartialFileTest, WhatSomebodyWritesIsNotRemoved) {
  std::string partial;
  const auto file = CreatePartialFile(Path("model"), &partial);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string theirs = Path(absl::StrCat("model.partial-", gone_, "-0"));
  ASSERT_EQ(rename(partial.c_str(), theirs.c_str()), 0);
  Create();
  EXPECT_TRUE(Exists(theirs));
  close(*file);
  Create();
  EXPECT_FALSE(Exists(theirs));
  EXPECT_THAT(warnings_, Contains(HasSubstr(theirs)));
}

TEST_F(PartialFileTest, ErrorsNameTheFile) {
  std::string partial;
  const absl::Status status =
      CreatePartialFile(Path("none/model"), &partial).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(Path("none/model.partial-")));
}

}  // namespace
}  // namespace deltaedge
