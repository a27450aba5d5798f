// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_ENGINE_TEXT_GOLDEN_H_
#define DELTAEDGE_TESTS_ENGINE_TEXT_GOLDEN_H_

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/tokenizer_tables.h"
#include "engine/text/bpe_tokenizer.h"
#include "engine/tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tools/convert/tokenizer_json.h"

namespace deltaedge::testing {

inline constexpr char kTokenizerFolder[] = "tests/testdata/tokenizer/";

// A JSON file of tests/testdata/tokenizer. Discarded if it cannot be read.
inline nlohmann::json ReadGolden(const std::string& name) {
  std::ifstream file(kTokenizerFolder + name);
  return nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
}

// Null, and a failure, if it cannot be made.
inline std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerTables tables) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer =
      MakeBpeTokenizer(std::move(tables));
  if (!tokenizer.ok()) {
    ADD_FAILURE() << tokenizer.status();
    return nullptr;
  }
  return *std::move(tokenizer);
}

// The tables of a tokenizer.json of tests/testdata/tokenizer.
inline TokenizerTables ReadTables(const std::string& name) {
  absl::StatusOr<TokenizerTables> tables =
      ReadTokenizerJson(kTokenizerFolder + name);
  if (!tables.ok()) {
    ADD_FAILURE() << tables.status();
    return {};
  }
  return *std::move(tables);
}

inline std::unique_ptr<Tokenizer> ReadTokenizer(const std::string& name) {
  return MakeTokenizer(ReadTables(name));
}

// All of `ids` as text.
inline std::string Decode(const Tokenizer& tokenizer,
                          const std::vector<TokenId>& ids,
                          StreamDecoder::SpecialTokens special_tokens =
                              StreamDecoder::SpecialTokens::kKeep) {
  StreamDecoder decoder(&tokenizer, special_tokens);
  std::string text;
  for (TokenId id : ids) {
    const absl::StatusOr<absl::string_view> part = decoder.Push(id);
    if (!part.ok()) {
      ADD_FAILURE() << part.status();
      return text;
    }
    text.append(part->data(), part->size());
  }
  return text + decoder.Flush();
}

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_ENGINE_TEXT_GOLDEN_H_
