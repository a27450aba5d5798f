// SPDX-License-Identifier: Apache-2.0

#include "engine/model/model_writer.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/config.h"
#include "engine/model/model_contents.h"
#include "engine/model/model_file.h"
#include "engine/model/tensor_list.h"
#include "engine/model/weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/model/tiny_models.h"

namespace {

// Of what is open under the numbers that were synced: 'f' a file, 'd' a folder.
std::string* synced = nullptr;

}  // namespace

// In place of the C library's.
extern "C" int fsync(int file) {
  struct stat info = {};
  if (synced != nullptr && fstat(file, &info) == 0) {
    *synced += S_ISDIR(info.st_mode) ? 'd' : 'f';
  }
  return static_cast<int>(syscall(SYS_fsync, file));
}

namespace deltaedge {
namespace {

using ::deltaedge::testing::QuantisedSpecs;
using ::deltaedge::testing::ReadFile;
using ::deltaedge::testing::Specs;
using ::deltaedge::testing::TempPath;
using ::deltaedge::testing::TinyBytes;
using ::deltaedge::testing::TinyDraft;
using ::deltaedge::testing::TinyParts;
using ::deltaedge::testing::TinyTarget;
using ::deltaedge::testing::TinyValues;
using ::deltaedge::testing::TinyWideTarget;
using ::deltaedge::testing::WriteFile;
using ::deltaedge::testing::WriteTinyModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A folder of its own for each test, and what lies in it.
class ModelWriterTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = TempPath(
        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    mkdir(folder_.c_str(), 0777);
  }
  std::string Path(const std::string& name) const {
    return folder_ + "/" + name;
  }
  std::vector<std::string> Listing() const {
    std::vector<std::string> names;
    DIR* const dir = opendir(folder_.c_str());
    while (const dirent* entry = readdir(dir)) {
      const std::string name = entry->d_name;
      if (name != "." && name != "..") names.push_back(name);
    }
    closedir(dir);
    return names;
  }

  std::string folder_;
};

std::unique_ptr<ModelWriter> NewWriter(const std::string& path,
                                       const ModelContents& contents) {
  auto writer = ModelWriter::Create(path, contents, Specs(contents));
  EXPECT_EQ(writer.status(), absl::OkStatus());
  return *std::move(writer);
}

absl::Status AppendAll(ModelWriter* writer, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const TensorSpec& spec = writer->tensors()[i];
    absl::Status status = writer->Begin(spec.name);
    if (!status.ok()) return status;
    status = writer->Append(absl::MakeConstSpan(TinyValues(i, spec)));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

TEST_F(ModelWriterTest, PiecesAndOrderDoNotShow) {
  ASSERT_EQ(WriteTinyModel(Path("whole.gdn"), TinyTarget(), 7),
            absl::OkStatus());
  const auto writer = NewWriter(Path("pieces.gdn"), TinyTarget());
  for (size_t i = writer->tensors().size(); i-- > 0;) {
    const TensorSpec& spec = writer->tensors()[i];
    ASSERT_EQ(writer->Begin(spec.name), absl::OkStatus());
    const std::vector<float> values = TinyValues(i, spec);
    ASSERT_EQ(writer->Append(absl::MakeConstSpan(values).subspan(0, 1)),
              absl::OkStatus());
    ASSERT_EQ(writer->Append(absl::Span<const float>()), absl::OkStatus());
    ASSERT_EQ(writer->Append(absl::MakeConstSpan(values).subspan(1)),
              absl::OkStatus());
  }
  ASSERT_EQ(writer->Finish(7), absl::OkStatus());
  const std::string whole = ReadFile(Path("whole.gdn"));
  EXPECT_TRUE(ReadFile(Path("pieces.gdn")) == whole);
  EXPECT_EQ(writer->file_bytes(), static_cast<int64_t>(whole.size()));
}

TEST_F(ModelWriterTest, AppearsOnlyWhenFinished) {
  WriteFile(Path("model.gdn"), "old");
  {
    const auto writer = NewWriter(Path("model.gdn"), TinyDraft());
    ASSERT_EQ(AppendAll(writer.get(), 0, writer->tensors().size()),
              absl::OkStatus());
    EXPECT_EQ(ReadFile(Path("model.gdn")), "old");
    EXPECT_EQ(Listing().size(), 2u);
    ASSERT_EQ(writer->Finish(7), absl::OkStatus());
    EXPECT_EQ(writer->Finish(7).code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(writer->Append(absl::Span<const float>()).code(),
              absl::StatusCode::kFailedPrecondition);
  }
  EXPECT_THAT(Listing(), ElementsAre("model.gdn"));
  EXPECT_TRUE(ModelFile::Open(Path("model.gdn")).ok());
}

// Its contents, then its name.
TEST_F(ModelWriterTest, IsDurableWhenFinished) {
  const auto here = getcwd(nullptr, 0);
  ASSERT_EQ(chdir(folder_.c_str()), 0);
  for (const std::string& path : {Path("model.gdn"), std::string("here.gdn")}) {
    const auto writer = NewWriter(path, TinyDraft());
    ASSERT_EQ(AppendAll(writer.get(), 0, writer->tensors().size()),
              absl::OkStatus());
    std::string order;
    synced = &order;
    const absl::Status finished = writer->Finish(7);
    synced = nullptr;
    EXPECT_EQ(finished, absl::OkStatus());
    EXPECT_EQ(order, "fd");
  }
  EXPECT_EQ(chdir(here), 0);
  free(here);
}

TEST_F(ModelWriterTest, AbandonedLeavesNothing) {
  {
    const auto writer = NewWriter(Path("model.gdn"), TinyDraft());
    ASSERT_EQ(AppendAll(writer.get(), 0, 3), absl::OkStatus());
  }
  EXPECT_THAT(Listing(), IsEmpty());
}

TEST_F(ModelWriterTest, TwoWritersOfOnePathDoNotMeet) {
  const auto first = NewWriter(Path("model.gdn"), TinyDraft());
  const auto second = NewWriter(Path("model.gdn"), TinyTarget());
  ASSERT_EQ(AppendAll(first.get(), 0, first->tensors().size()),
            absl::OkStatus());
  ASSERT_EQ(AppendAll(second.get(), 0, second->tensors().size()),
            absl::OkStatus());
  ASSERT_EQ(first->Finish(1), absl::OkStatus());
  ASSERT_EQ(second->Finish(2), absl::OkStatus());
  const auto opened =
      ModelFile::Open(Path("model.gdn"), ModelFile::Verify::kChecksums);
  ASSERT_EQ(opened.status(), absl::OkStatus());
  EXPECT_EQ((*opened)->fingerprint(), 2u);
}

TEST_F(ModelWriterTest, MisuseIsNamed) {
  const auto writer = NewWriter(Path("model.gdn"), TinyDraft());
  EXPECT_EQ(writer->Append(absl::Span<const float>()).code(),
            absl::StatusCode::kFailedPrecondition);
  absl::Status status = writer->Begin("nobody");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'nobody'"));

  ASSERT_EQ(writer->Begin("hidden_norm"), absl::OkStatus());
  const std::vector<float> values(5);
  status = writer->Append(absl::MakeConstSpan(values));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'hidden_norm'"));
  ASSERT_EQ(writer->Append(absl::MakeConstSpan(values).subspan(0, 3)),
            absl::OkStatus());
  status = writer->Begin("final_norm");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("has 12 of its 16 bytes of numbers"));
  status = writer->Append(absl::MakeConstSpan(values).subspan(0, 2));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  ASSERT_EQ(writer->Append(absl::MakeConstSpan(values).subspan(0, 1)),
            absl::OkStatus());
  status = writer->Begin("hidden_norm");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("twice"));
  status = writer->Finish(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("'fc'"));
  EXPECT_EQ(writer->Finish(0).code(), absl::StatusCode::kInvalidArgument);
}

absl::Span<const std::byte> Bytes(const std::string& text) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()),
                             text.size());
}

TEST_F(ModelWriterTest, NumbersAndScalesComeInAnyOrder) {
  const ModelContents contents = TinyWideTarget();
  const std::vector<TensorSpec> specs = QuantisedSpecs(contents);
  ASSERT_EQ(WriteTinyModel(Path("whole.gdn"), contents, specs, 7),
            absl::OkStatus());
  auto writer = ModelWriter::Create(Path("pieces.gdn"), contents, specs);
  ASSERT_EQ(writer.status(), absl::OkStatus());
  for (size_t i = 0; i < specs.size(); ++i) {
    const TinyParts parts = TinyBytes(i, specs[i]);
    ASSERT_EQ((*writer)->Begin(specs[i].name), absl::OkStatus());
    size_t numbers = 0;
    const auto append = [&](size_t count) {
      ASSERT_EQ((*writer)->Append(Bytes(parts.numbers.substr(numbers, count))),
                absl::OkStatus());
      numbers += count;
    };
    for (size_t scale = 0; scale < parts.scales.size(); scale += 4) {
      ASSERT_EQ((*writer)->AppendScales(Bytes(parts.scales.substr(scale, 4))),
                absl::OkStatus());
      if (scale % 8 == 0 && numbers + 3 < parts.numbers.size()) append(3);
    }
    append(parts.numbers.size() - numbers);
  }
  ASSERT_EQ((*writer)->Finish(7), absl::OkStatus());
  EXPECT_TRUE(ReadFile(Path("pieces.gdn")) == ReadFile(Path("whole.gdn")));
  EXPECT_EQ(ModelFile::Open(Path("pieces.gdn"), ModelFile::Verify::kChecksums)
                .status(),
            absl::OkStatus());
}

TEST_F(ModelWriterTest, MisuseOfScalesIsNamed) {
  const ModelContents contents = TinyWideTarget();
  const std::vector<TensorSpec> specs = QuantisedSpecs(contents);
  const auto created = ModelWriter::Create(Path("model.gdn"), contents, specs);
  ASSERT_EQ(created.status(), absl::OkStatus());
  ModelWriter& writer = **created;
  EXPECT_EQ(writer.AppendScales({}).code(),
            absl::StatusCode::kFailedPrecondition);
  // [6, 32]: q8 with 6 scales.
  ASSERT_EQ(writer.Begin("layers.0.gdn.in_z"), absl::OkStatus());
  ASSERT_EQ(writer.Append(Bytes(std::string(192, 'x'))), absl::OkStatus());
  absl::Status status = writer.Append(Bytes("x"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("has 192 bytes of numbers"));
  const auto scales = [](std::vector<float> values) {
    return std::string(reinterpret_cast<const char*>(values.data()),
                       values.size() * sizeof(float));
  };
  status = writer.AppendScales(Bytes(scales({1, 2, 0})));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("'layers.0.gdn.in_z'"));
  EXPECT_THAT(status.message(), HasSubstr("scale 2 is 0"));
  ASSERT_EQ(writer.AppendScales(Bytes(scales({1, 2, 3, 4}))), absl::OkStatus());
  status = writer.Begin("final_norm");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(status.message(), HasSubstr("16 of its 24 bytes of scales"));
  status = writer.AppendScales(Bytes(scales({1, 2, 3})));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("has 24 bytes of scales"));
  ASSERT_EQ(writer.AppendScales(Bytes(scales({1, 2}))), absl::OkStatus());
  ASSERT_EQ(writer.Begin("final_norm"), absl::OkStatus());
  status = writer.AppendScales(Bytes(scales({1})));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("has 0 bytes of scales"));
  // Scales alone have begun a tensor too.
  ASSERT_EQ(writer.Append(Bytes(std::string(128, '\0'))), absl::OkStatus());
  ASSERT_EQ(writer.Begin("head"), absl::OkStatus());
  ASSERT_EQ(writer.AppendScales(Bytes(scales({1}))), absl::OkStatus());
  status = writer.Finish(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ModelWriterTest, UnsoundModelsAreRefused) {
  const auto expect = [this](const ModelContents& contents,
                             std::vector<TensorSpec> specs,
                             absl::string_view named) {
    const absl::Status status =
        ModelWriter::Create(Path("model.gdn"), contents, std::move(specs))
            .status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << named;
    EXPECT_THAT(status.message(), HasSubstr(named));
    EXPECT_THAT(status.message(), HasSubstr("model.gdn"));
  };
  ModelContents contents = TinyTarget();
  contents.target.gdn.conv_width = 3;
  expect(contents, Specs(TinyTarget()), "gdn.conv_width is 3");

  contents = TinyTarget();
  std::vector<TensorSpec> specs = Specs(contents);
  specs.pop_back();
  expect(contents, specs, "'head', [8, 4], is missing");
  specs = Specs(contents);
  specs[2].shape = {4, 10};
  expect(contents, specs, "'layers.0.gdn.in_qkv' is [4, 10]");
  specs = Specs(contents);
  specs[2].type = WeightType::kUnknown;
  expect(contents, specs, "type 0");
  specs = Specs(contents);
  specs[2].type = WeightType::kQ4;
  expect(contents, specs, "'layers.0.gdn.in_qkv' is [10, 4], type q4 needs");
  specs = Specs(contents);
  specs[4].type = WeightType::kQ8;
  expect(contents, specs, "'layers.0.gdn.in_b' has type 2 (q8)");
  specs = Specs(contents);
  specs.push_back(specs[0]);
  expect(contents, specs, "two tensors 'embedding'");
  specs = Specs(contents);
  specs[0].shape = {1 << 30, 1 << 30};
  specs[1].shape = {1 << 30, 1 << 30};
  expect(contents, specs, "too big");
  contents.stop_tokens = {99};
  expect(contents, Specs(contents), "stop_tokens[0] is 99");
  EXPECT_THAT(Listing(), IsEmpty());
}

TEST_F(ModelWriterTest, PathsThatCannotBeWritten) {
  const auto status_of = [](const std::string& path) {
    const ModelContents contents = TinyDraft();
    const absl::Status status =
        ModelWriter::Create(path, contents, Specs(contents)).status();
    EXPECT_THAT(status.message(), HasSubstr(path));
    return status;
  };
  EXPECT_EQ(status_of(Path("none/model.gdn")).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(status_of(folder_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of(folder_ + "/").code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of("/dev/null").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status_of("").code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(Listing(), IsEmpty());
}

TEST_F(ModelWriterTest, WriteErrorsNameTheFile) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto limit = [&old](rlim_t bytes) {
    const rlimit now = {bytes, old.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  };
  {
    const auto writer = NewWriter(Path("model.gdn"), TinyDraft());
    limit(1000);
    const absl::Status status =
        AppendAll(writer.get(), 0, writer->tensors().size());
    limit(old.rlim_cur);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(Path("model.gdn")));
  }
  {
    limit(1000);
    const ModelContents contents = TinyDraft();
    const absl::Status status =
        ModelWriter::Create(Path("model.gdn"), contents, Specs(contents))
            .status();
    limit(old.rlim_cur);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), HasSubstr(Path("model.gdn")));
  }
  EXPECT_THAT(Listing(), IsEmpty());
}

TEST_F(ModelWriterTest, FolderThatVanishesIsAnError) {
  const std::string inner = Path("inner");
  ASSERT_EQ(mkdir(inner.c_str(), 0777), 0);
  const auto writer = NewWriter(inner + "/model.gdn", TinyDraft());
  ASSERT_EQ(AppendAll(writer.get(), 0, writer->tensors().size()),
            absl::OkStatus());
  ASSERT_EQ(std::rename(inner.c_str(), Path("moved").c_str()), 0);
  const absl::Status status = writer->Finish(1);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("put into place"));
}

}  // namespace
}  // namespace deltaedge
