// SPDX-License-Identifier: Apache-2.0

#include "engine/text/stop_text.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "engine/text/utf8.h"
#include "gtest/gtest.h"
#include "tests/testing/random.h"

namespace deltaedge {
namespace {

using testing::Random;

// What a stream that has come so far lets out, by the definition.
struct Expected {
  std::string released, held;
  bool stopped = false;
};

Expected Definition(const std::vector<std::string>& texts,
                    absl::string_view stream) {
  for (size_t end = 1; end <= stream.size(); ++end) {
    size_t longest = 0;
    for (const std::string& text : texts) {
      if (absl::EndsWith(stream.substr(0, end), text)) {
        longest = std::max(longest, text.size());
      }
    }
    if (longest > 0) {
      return {std::string(stream.substr(0, end - longest)), "", true};
    }
  }
  for (size_t begin = 0; begin < stream.size(); ++begin) {
    for (const std::string& text : texts) {
      if (absl::StartsWith(text, stream.substr(begin))) {
        return {std::string(stream.substr(0, begin)),
                std::string(stream.substr(begin)), false};
      }
    }
  }
  return {std::string(stream), "", false};
}

// Pushes `pieces`, each of whole characters, and compares with the definition
// after each, then flushes.
void ExpectDefinition(const std::vector<std::string>& texts,
                      const std::vector<std::string>& pieces,
                      StopTextMatcher& matcher) {
  std::string stream, released;
  for (const std::string& piece : pieces) {
    stream += piece;
    const StopTextMatcher::Result result = matcher.Push(piece);
    ASSERT_TRUE(CheckUtf8(result.text, "released").ok()) << "in " << stream;
    released.append(result.text.data(), result.text.size());
    const Expected expected = Definition(texts, stream);
    ASSERT_EQ(released, expected.released) << "of " << stream;
    ASSERT_EQ(result.stopped, expected.stopped) << "in " << stream;
  }
  ASSERT_EQ(matcher.Flush(), Definition(texts, stream).held);
}

std::string RandomText(Random& random, const std::vector<std::string>& letters,
                       int min_size, int max_size) {
  std::string text;
  for (int i = random.Int(min_size, max_size); i > 0; --i) {
    text += letters[random.Int(0, static_cast<int>(letters.size()) - 1)];
  }
  return text;
}

TEST(StopTextTest, RandomTextsCutAtRandom) {
  const std::vector<std::string> kAlphabets[] = {
      {"a", "b"},
      {"a", "b", "c"},
      // Characters whose first bytes agree, or whose last.
      {"\xC3\xA8", "\xC3\xA9", "\xC5\xA9"},
      {"a", "\xE6\x97\xA5", "\xE6\x9B\xA5"},
  };
  int stops = 0, held = 0;
  for (int seed = 0; seed < 8000; ++seed) {
    Random random(seed);
    const auto& letters = kAlphabets[seed % 4];
    std::vector<std::string> texts;
    for (int i = random.Int(1, 4); i > 0; --i) {
      texts.push_back(RandomText(random, letters, 1, 6));
    }
    StopTextMatcher matcher(texts);
    // The same matcher again, after an end in whatever state.
    for (int stream = 0; stream < 2; ++stream) {
      std::vector<std::string> pieces;
      std::string whole;
      for (int i = random.Int(0, 8); i > 0; --i) {
        pieces.push_back(RandomText(random, letters, 0, 5));
        whole += pieces.back();
      }
      ASSERT_NO_FATAL_FAILURE(ExpectDefinition(texts, pieces, matcher));
      stops += Definition(texts, whole).stopped;
      held += !Definition(texts, whole).held.empty();
    }
  }
  EXPECT_GT(stops, 1000);
  EXPECT_GT(held, 1000);
}

// Borders of pieces at every place: every way to cut a stream of 12 bytes.
TEST(StopTextTest, CutInEveryWay) {
  const struct {
    std::vector<std::string> texts;
    std::string stream;
  } kCases[] = {
      {{"aab"}, "aaaaabaaaabx"},
      {{"aaab"}, "aabaaabaaaab"},
      {{"abab"}, "abaabbabaabx"},
      {{"abab", "bb"}, "aabaababbabb"},
      {{"aab", "aaab", "abab"}, "abaaabababab"},
  };
  for (const auto& c : kCases) {
    ASSERT_EQ(c.stream.size(), 12u);
    StopTextMatcher matcher(c.texts);
    for (unsigned cuts = 0; cuts < 1u << 11; ++cuts) {
      std::vector<std::string> pieces(1);
      for (size_t i = 0; i < c.stream.size(); ++i) {
        pieces.back() += c.stream[i];
        if (cuts >> i & 1) pieces.emplace_back();
      }
      ASSERT_NO_FATAL_FAILURE(ExpectDefinition(c.texts, pieces, matcher));
    }
  }
}

TEST(StopTextTest, OneTextInAnother) {
  const struct {
    std::vector<std::string> texts;
    std::string stream, released;
  } kCases[] = {
      // The beginning of another is complete first.
      {{"stop", "stop it"}, "please stop it", "please "},
      // The end of another: complete at once, the longest counts.
      {{"end", "the end"}, "this is the end.", "this is "},
      {{"the end", "end"}, "this is the end.", "this is "},
      // The inside of another is complete first.
      {{"a stop b", "stop"}, "a stop b", "a "},
      // The same twice.
      {{"x", "x"}, "wxyz", "w"},
  };
  for (const auto& c : kCases) {
    StopTextMatcher matcher(c.texts);
    const StopTextMatcher::Result result = matcher.Push(c.stream);
    EXPECT_EQ(result.text, c.released);
    EXPECT_TRUE(result.stopped);
    std::string released;
    bool stopped = false;
    StopTextMatcher bytewise(c.texts);
    for (const char byte : c.stream) {
      const auto part = bytewise.Push(absl::string_view(&byte, 1));
      released.append(part.text.data(), part.text.size());
      stopped = part.stopped;
    }
    EXPECT_EQ(released, c.released);
    EXPECT_TRUE(stopped);
  }
}

TEST(StopTextTest, NothingAfterAMatch) {
  StopTextMatcher matcher(std::vector<std::string>{"##", "#!"});
  EXPECT_FALSE(matcher.Push("a#").stopped);
  const StopTextMatcher::Result result = matcher.Push("#b#");
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.text, "");
  for (const char* piece : {"!", "c", "", "##"}) {
    const StopTextMatcher::Result after = matcher.Push(piece);
    EXPECT_TRUE(after.stopped);
    EXPECT_EQ(after.text, "");
  }
  EXPECT_EQ(matcher.Flush(), "");
  const StopTextMatcher::Result again = matcher.Push("c#");
  EXPECT_FALSE(again.stopped);
  EXPECT_EQ(again.text, "c");
  EXPECT_EQ(matcher.Flush(), "#");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopTextTest, WithoutTextsPiecesPassUncopied) {
  StopTextMatcher matcher;
  const std::string piece = "anything at all, long enough for a heap";
  EXPECT_EQ(matcher.Push(piece).text.data(), piece.data());
  EXPECT_EQ(matcher.Push(piece).text.size(), piece.size());
  EXPECT_FALSE(matcher.Push(piece).stopped);
  EXPECT_EQ(matcher.Push("").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

// Whole characters in, whole characters out, wherever a text ends.
TEST(StopTextTest, CharactersStayWhole) {
  // Both begin with E6 97; the stream's third character only shares that.
  const std::vector<std::string> texts = {"\xE6\x97\xA5\xE6\x97\xA5!",
                                          "\xE6\x97\xA6"};
  StopTextMatcher matcher(texts);
  std::string released;
  for (const char* piece : {"\xE6\x97\xA5", "\xE6\x97\xA5", "\xE6\x97\xA7",
                            "\xE6\x97\xA5", "x\xE6\x97\xA5"}) {
    const StopTextMatcher::Result result = matcher.Push(piece);
    EXPECT_TRUE(CheckUtf8(result.text, "released").ok());
    EXPECT_FALSE(result.stopped);
    released.append(result.text.data(), result.text.size());
  }
  EXPECT_EQ(released, "\xE6\x97\xA5\xE6\x97\xA5\xE6\x97\xA7\xE6\x97\xA5x");
  EXPECT_EQ(matcher.Flush(), "\xE6\x97\xA5");
}

TEST(StopTextTest, ACopyGoesOnByItself) {
  StopTextMatcher matcher(std::vector<std::string>{"abc"});
  EXPECT_EQ(matcher.Push("xab").text, "x");
  StopTextMatcher copy = matcher;
  EXPECT_TRUE(matcher.Push("c").stopped);
  const StopTextMatcher::Result result = copy.Push("d");
  EXPECT_FALSE(result.stopped);
  EXPECT_EQ(result.text, "abd");
  matcher = StopTextMatcher();
  EXPECT_EQ(copy.Push("ab").text, "");
  EXPECT_EQ(copy.Flush(), "ab");
}

// A million bytes that keep the longest texts nearly matched, byte by byte and
// at once: naive searching would take a thousand times as long.
TEST(StopTextTest, OneLetterAMillionTimes) {
  constexpr size_t kSize = 1 << 20;
  const std::string stream(kSize, 'a');
  const std::vector<std::string> texts = {std::string(1023, 'a') + "b",
                                          "b" + std::string(1023, 'a')};
  for (const size_t piece : {size_t{1}, size_t{1000}, kSize}) {
    StopTextMatcher matcher(texts);
    size_t released = 0;
    for (size_t i = 0; i < kSize; i += piece) {
      const auto result =
          matcher.Push(absl::string_view(stream).substr(i, piece));
      ASSERT_FALSE(result.stopped);
      released += result.text.size();
      ASSERT_EQ(released,
                std::max<size_t>(std::min(i + piece, kSize), 1023) - 1023);
    }
    const StopTextMatcher::Result result = matcher.Push("b");
    EXPECT_TRUE(result.stopped);
    EXPECT_EQ(result.text, "");
  }
  StopTextMatcher matcher(std::vector<std::string>{std::string(1024, 'a')});
  size_t pushed = 1;
  for (; !matcher.Push("a").stopped; ++pushed) {
  }
  EXPECT_EQ(pushed, 1024u);
}

}  // namespace
}  // namespace deltaedge
