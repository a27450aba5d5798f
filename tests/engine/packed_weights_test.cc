// SPDX-License-Identifier: Apache-2.0

// Packed weights in a file: mapped when they are good, made anew when they are
// not, and never a reason for another answer or for an error.

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/crc/crc32c.h"
#include "absl/strings/match.h"
#include "absl/types/span.h"
#include "engine/base/allocation_hooks.h"
#include "engine/engine.h"
#include "engine/ops/packed_cache.h"
#include "engine/options.h"
#include "engine/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/canary.h"
#include "tests/testing/demo_pair.h"
#include "tests/testing/emulated.h"
#include "tests/testing/random.h"
#include "tests/testing/resident_bytes.h"
#include "tools/make_random/make_random.h"
#include "tools/make_random/shapes.h"

namespace deltaedge {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Random;
using testing::SameBits;
using ::testing::StartsWith;

class PackedWeightsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/packed_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    files_ = {testing::Runfile("tests/testdata/models/odd.gdn"),
              testing::Runfile("tests/testdata/models/odd_draft.gdn")};
    file_ = folder_ + "/odd.gdn.packed";
    truth_ = Ask(EngineOptions::PackedWeights::kMemory);
    EXPECT_THAT(how_, StartsWith("packed in memory"));
    EXPECT_TRUE(fs::is_empty(folder_));
  }

  // Scores of an answer; how_ says where the weights were.
  std::vector<float> Ask(
      EngineOptions::PackedWeights where = EngineOptions::PackedWeights::kFile,
      EngineOptions::Verify verify = EngineOptions::Verify::kStructure) {
    std::vector<float> logits;
    EngineOptions options;
    options.num_threads = 1;
    options.verify = verify;
    options.packed_weights = where;
    options.packed_folder = folder_;
    auto engine = Engine::Open(files_, options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return logits;
    how_ = (*engine)->info().packed_weights;
    live_bytes_ = LiveAllocatedBytes();
    SessionOptions session_options;
    session_options.max_context = 64;
    auto session = (*engine)->NewSession(session_options);
    EXPECT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE((*session)->Prefill({1, 2, 3, 4, 5}).ok());
    GenerateOptions rules;
    rules.max_new_tokens = 12;
    rules.ignore_model_stop_tokens = true;
    rules.logits = true;
    auto result = (*session)->Generate(rules, [&](const TokenEvent& event) {
      logits.insert(logits.end(), event.logits.begin(), event.logits.end());
      return true;
    });
    EXPECT_TRUE(result.ok()) << result.status();
    return logits;
  }

  void ExpectMapped() {
    EXPECT_TRUE(SameBits(Ask(), truth_));
    EXPECT_THAT(how_, StartsWith("mapped from"));
  }
  void ExpectMadeAnew() {
    EXPECT_TRUE(SameBits(Ask(), truth_));
    EXPECT_THAT(how_, HasSubstr("written to"));
  }

  std::string Read() const {
    std::ifstream in(file_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in),
            std::istreambuf_iterator<char>()};
  }
  void Write(const std::string& bytes) const {
    std::ofstream(file_, std::ios::binary) << bytes;
  }
  int64_t Files() const {
    return std::distance(fs::directory_iterator(folder_),
                         fs::directory_iterator());
  }

  std::string folder_, file_, how_;
  ModelFiles files_;
  std::vector<float> truth_;
  int64_t live_bytes_ = 0;  // When the engine was open.
};

TEST_F(PackedWeightsTest, MadeOnceAndMappedAfter) {
  ExpectMadeAnew();
  EXPECT_EQ(Files(), 2) << "target and draft, and nothing half made";
  const std::string first = Read();
  ExpectMapped();
  ExpectMapped();
  EXPECT_EQ(Read(), first);
  EXPECT_TRUE(SameBits(Ask(EngineOptions::PackedWeights::kFile,
                           EngineOptions::Verify::kChecksums),
                       truth_));
  EXPECT_THAT(how_, StartsWith("mapped from"));
}

// Of a model with experts, of which most rest, nothing is packed in memory: the
// first start uses what the second finds.
TEST_F(PackedWeightsTest, ExpertsArePackedIntoTheFile) {
  files_ = {testing::Runfile("tests/testdata/models/moe.gdn"),
            testing::Runfile("tests/testdata/models/moe_draft.gdn")};
  file_ = folder_ + "/moe.gdn.packed";
  truth_ = Ask(EngineOptions::PackedWeights::kMemory);
  EXPECT_THAT(how_, StartsWith("packed in memory"));
  EXPECT_TRUE(SameBits(Ask(), truth_));
  EXPECT_THAT(how_, AllOf(StartsWith("packed into " + file_),
                          HasSubstr("mapped from there")));
  EXPECT_EQ(Files(), 2) << "target and draft, and nothing half made";
  const std::string first = Read();
  ExpectMapped();
  EXPECT_TRUE(SameBits(Ask(EngineOptions::PackedWeights::kFile,
                           EngineOptions::Verify::kChecksums),
                       truth_));
  EXPECT_THAT(how_, StartsWith("mapped from"));

  // Damaged, it is made anew; without a folder, in memory.
  Write(first.substr(0, first.size() / 2));
  EXPECT_TRUE(SameBits(Ask(), truth_));
  EXPECT_THAT(how_, StartsWith("packed into"));
  EXPECT_EQ(Read(), first);
  folder_ += "/none";
  EXPECT_TRUE(SameBits(Ask(), truth_));
  EXPECT_THAT(how_, StartsWith("packed in memory; no file"));
}

// A disk that is full in the middle: what was packed by then is no more.
TEST_F(PackedWeightsTest, ExpertsThatDoNotFitAreInMemoryOnce) {
  files_ = {testing::Runfile("tests/testdata/models/moe.gdn"),
            testing::Runfile("tests/testdata/models/moe_draft.gdn")};
  file_ = folder_ + "/moe.gdn.packed";
  truth_ = Ask(EngineOptions::PackedWeights::kMemory);
  const int64_t in_memory = live_bytes_;
  EXPECT_TRUE(SameBits(Ask(), truth_));
  EXPECT_LT(live_bytes_, in_memory);
  const auto size = static_cast<int64_t>(fs::file_size(file_));
  rlimit all = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &all), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const int64_t room : {int64_t{1}, size / 3, size / 2, size - 1}) {
    SCOPED_TRACE(room);
    fs::remove_all(folder_);  // The draft's as well.
    fs::create_directory(folder_);
    const rlimit some = {static_cast<rlim_t>(room), all.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &some), 0);
    const std::vector<float> scores = Ask();
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &all), 0);
    EXPECT_TRUE(SameBits(scores, truth_));
    EXPECT_THAT(how_, AllOf(StartsWith("packed in memory; no file"),
                            HasSubstr("moe.gdn.packed")));
    EXPECT_EQ(live_bytes_, in_memory);
    EXPECT_FALSE(fs::exists(file_));
  }
  std::signal(SIGXFSZ, handler);
}

TEST_F(PackedWeightsTest, CutAnywhereItIsMadeAnew) {
  ExpectMadeAnew();
  const std::string whole = Read();
  for (const size_t length : {size_t{0}, size_t{7}, size_t{63}, size_t{64},
                              whole.size() / 2, whole.size() - 1}) {
    SCOPED_TRACE(length);
    Write(whole.substr(0, length));
    ExpectMadeAnew();
    EXPECT_EQ(Read(), whole);
  }
  Write(whole + "x");
  ExpectMadeAnew();
}

TEST_F(PackedWeightsTest, DamagedHeaderTableOrKeyIsMadeAnew) {
  ExpectMadeAnew();
  const std::string whole = Read();
  uint64_t table = 0;
  std::memcpy(&table, whole.data() + 16, 8);
  Random random(3);
  for (int i = 0; i < 24; ++i) {
    std::string damaged = whole;
    const size_t at =
        i < 8
            ? static_cast<size_t>(random.Int(0, 39))
            : static_cast<size_t>(random.Int(
                  static_cast<int>(table), static_cast<int>(whole.size()) - 1));
    SCOPED_TRACE(at);
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << random.Int(0, 7)));
    Write(damaged);
    ExpectMadeAnew();
  }
}

TEST_F(PackedWeightsTest, ADamagedPieceIsFoundWhenAskedFor) {
  ExpectMadeAnew();
  const std::string whole = Read();
  std::string damaged = whole;
  damaged[1000] = static_cast<char>(damaged[1000] ^ 1);
  Write(damaged);
  EXPECT_TRUE(SameBits(Ask(EngineOptions::PackedWeights::kFile,
                           EngineOptions::Verify::kChecksums),
                       truth_));
  EXPECT_THAT(how_, HasSubstr("damaged"));
  EXPECT_EQ(Read(), whole);
}

// Sound by its checksums, but not what this model packs.
TEST_F(PackedWeightsTest, APieceThatIsTooSmallIsMadeAnew) {
  ExpectMadeAnew();
  const std::string whole = Read();
  std::string forged = whole;
  uint64_t table = 0;
  std::memcpy(&table, forged.data() + 16, 8);
  const uint64_t size = 64;
  std::memcpy(forged.data() + table + 8, &size, 8);
  const auto checksum = static_cast<uint32_t>(
      absl::ComputeCrc32c(absl::string_view(forged).substr(table)));
  std::memcpy(forged.data() + 12, &checksum, 4);
  Write(forged);
  ExpectMadeAnew();
  EXPECT_EQ(Read(), whole);
}

TEST_F(PackedWeightsTest, OfAnotherModelItIsMadeAnew) {
  ExpectMadeAnew();
  const std::string odd = Read();
  files_ = {testing::Runfile("tests/testdata/models/t.gdn"), ""};
  file_ = folder_ + "/t.gdn.packed";
  truth_ = Ask(EngineOptions::PackedWeights::kMemory);
  Write(odd);
  ExpectMadeAnew();
  ExpectMapped();
}

TEST_F(PackedWeightsTest, WithoutAFolderWeightsAreInMemoryAndThatIsSaid) {
  folder_ += "/missing";
  EXPECT_TRUE(SameBits(Ask(), truth_));
  EXPECT_THAT(how_, StartsWith("packed in memory; no file"));
  EXPECT_THAT(how_, HasSubstr("missing"));
}

TEST_F(PackedWeightsTest, WhereNoFileCanBePutWeightsAreInMemory) {
  fs::create_directory(file_);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(SameBits(Ask(), truth_));
    EXPECT_THAT(how_, StartsWith("packed in memory; no file"));
    EXPECT_EQ(Files(), 2) << "the folder and the draft's";
  }
  if (geteuid() == 0) return;  // May write anywhere.
  fs::remove(file_);
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_TRUE(SameBits(Ask(), truth_));
  EXPECT_THAT(how_, StartsWith("packed in memory; no file"));
  fs::permissions(folder_, fs::perms::owner_all);
}

TEST_F(PackedWeightsTest, ManyStartsAtOnce) {
  std::vector<std::vector<float>> logits(4);
  std::vector<std::thread> threads;
  for (auto& mine : logits) {
    threads.emplace_back([this, &mine] {
      EngineOptions options;
      options.num_threads = 1;
      options.packed_folder = folder_;
      auto engine = Engine::Open(files_, options);
      ASSERT_TRUE(engine.ok()) << engine.status();
      mine.push_back(1.0f);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : logits) EXPECT_EQ(mine.size(), 1u);
  EXPECT_EQ(Files(), 2);
  ExpectMapped();
}

int MappingsThatWantHugePages() {
  std::ifstream maps("/proc/self/smaps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    count += absl::StartsWith(line, "VmFlags:") &&
             absl::StrContains(line + " ", " hg ");
  }
  return count;
}

// Memory of the second start: the packed weights once, and hardly any of the
// model file, however large the pages are that the system's cache keeps it in.
TEST(PackedMemoryTest, TheModelFileIsNotResidentAsWell) {
  const std::string folder = ::testing::TempDir() + "/resident";
  fs::create_directories(folder);
  // The system may know the folder by another name.
  const std::string name = "/resident_model.gdn";
  const std::string path = folder + name;
  auto config = TargetShape("qwen3.5-0.8b");
  ASSERT_TRUE(config.ok()) << config.status();
  config->vocab_size = 20480;
  config->intermediate_size = 512;
  config->layers.resize(4);
  RandomModelOptions made;
  made.recipe.weights = WeightType::kQ8;
  ASSERT_TRUE(MakeRandomTarget(*config, path, made).ok());
  const auto file_bytes = static_cast<double>(fs::file_size(path));
  EngineOptions options;
  options.num_threads = 1;
  options.packed_folder = folder;
  for (const bool mapped : {false, true}) {
    auto engine = Engine::Open({path, ""}, options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_EQ(absl::StartsWith((*engine)->info().packed_weights, "mapped"),
              mapped);
    if (testing::ResidentBytesOfFile(name) < 0) GTEST_SKIP() << "no smaps";
    // Weights that no step has used yet stay where they are.
    EXPECT_LT(testing::ResidentBytesOfFile(name + ".packed"), 0.2 * file_bytes);
    SessionOptions session_options;
    session_options.max_context = 256;
    auto session = (*engine)->NewSession(session_options);
    ASSERT_TRUE(session.ok()) << session.status();
    std::vector<TokenId> prompt;
    for (TokenId id = 0; id < config->vocab_size; id += 200) {
      prompt.push_back(id);
    }
    ASSERT_TRUE((*session)->Prefill(prompt).ok());
    GenerateOptions rules;
    rules.max_new_tokens = 8;
    rules.ignore_model_stop_tokens = true;
    ASSERT_TRUE((*session)
                    ->Generate(rules, [](const TokenEvent&) { return true; })
                    .ok());
    EXPECT_LT(testing::ResidentBytesOfFile(name), 0.01 * file_bytes);
    const auto packed = testing::ResidentBytesOfFile(name + ".packed");
    EXPECT_LT(packed, 1.05 * file_bytes);
    EXPECT_EQ(packed > 0.5 * file_bytes, mapped);
  }

  // An emulator keeps the wish to itself.
  if (testing::FewerIfEmulated("places of weights with huge pages", 2, 0) > 0) {
    for (const auto where : {EngineOptions::PackedWeights::kFile,
                             EngineOptions::PackedWeights::kMemory}) {
      options.packed_weights = where;
      for (const bool huge_pages : {false, true}) {
        options.huge_pages = huge_pages;
        const int before = MappingsThatWantHugePages();
        auto engine = Engine::Open({path, ""}, options);
        ASSERT_TRUE(engine.ok()) << engine.status();
        const int weights = MappingsThatWantHugePages();
        auto session = (*engine)->NewSession();
        ASSERT_TRUE(session.ok()) << session.status();
        const int states = MappingsThatWantHugePages();
        EXPECT_EQ(weights > before, huge_pages);
        EXPECT_EQ(states > weights, huge_pages);
      }
    }
  }
  fs::remove_all(folder);
}

TEST(PackedCacheTest, AbandonedWritersLeaveNothing) {
  const std::string path = ::testing::TempDir() + "/abandoned.packed";
  {
    auto writer = PackedCacheWriter::Create(path, "key");
    ASSERT_TRUE(writer.ok()) << writer.status();
    const std::vector<std::byte> piece(100);
    ASSERT_TRUE((*writer)->Add(piece).ok());
  }
  EXPECT_FALSE(fs::exists(path));
  for (const auto& entry : fs::directory_iterator(::testing::TempDir())) {
    EXPECT_EQ(entry.path().string().find("abandoned"), std::string::npos);
  }
}

TEST(PackedCacheTest, PiecesComeBackAligned) {
  const std::string path = ::testing::TempDir() + "/pieces.packed";
  auto writer = PackedCacheWriter::Create(path, "key");
  ASSERT_TRUE(writer.ok()) << writer.status();
  Random random(1);
  std::vector<std::vector<std::byte>> pieces;
  std::vector<absl::Span<std::byte>> places;
  for (const size_t size : {1, 63, 64, 65, 1000, 0, 7}) {
    std::vector<std::byte> piece(size);
    for (std::byte& byte : piece) byte = static_cast<std::byte>(random.Bits());
    ASSERT_TRUE((*writer)->Add(piece).ok());
    pieces.push_back(piece);
    // The same in the file's own memory, which stays while others are added.
    const auto place = (*writer)->Reserve(size);
    ASSERT_TRUE(place.ok()) << place.status();
    ASSERT_EQ(place->size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(place->data()) % 64, 0u);
    std::copy(piece.begin(), piece.end(), place->begin());
    ASSERT_TRUE((*writer)->Add(*place).ok());
    pieces.push_back(piece);
    places.push_back(*place);
  }
  ASSERT_TRUE((*writer)->Commit().ok());
  for (size_t i = 0; i < places.size(); ++i) {
    EXPECT_TRUE(SameBits(places[i], pieces[2 * i + 1]));
  }
  EXPECT_FALSE(
      PackedCache::Open(path, "other", PackedCache::Verify::kChecksums).ok());
  auto cache = PackedCache::Open(path, "key", PackedCache::Verify::kChecksums);
  ASSERT_TRUE(cache.ok()) << cache.status();
  ASSERT_EQ((*cache)->size(), static_cast<int64_t>(pieces.size()));
  for (size_t i = 0; i < pieces.size(); ++i) {
    const auto piece = (*cache)->piece(static_cast<int64_t>(i));
    EXPECT_TRUE(SameBits(piece, pieces[i]));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.data()) % 64, 0u);
  }
  EXPECT_TRUE((*cache)->piece(-1).empty());
  EXPECT_TRUE((*cache)->piece((*cache)->size()).empty());
}

}  // namespace
}  // namespace deltaedge
