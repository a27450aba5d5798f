// SPDX-License-Identifier: Apache-2.0

#include "engine/graph/target_model.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/graph/target_sequence.h"
#include "engine/model/model_file.h"
#include "engine/types.h"
#include "gtest/gtest.h"
#include "tests/testing/demo_pair.h"

namespace deltaedge {
namespace {

// A config's epsilon is that of the RMS norms; the L2 norm of queries and keys
// has 1e-6 whatever it says (docs/models.md 1.2). So the keys that a block
// leaves behind have length 1 even where the other epsilon is not small.
TEST(TargetModelTest, L2NormHasAnEpsilonOfItsOwn) {
  const auto file =
      ModelFile::Open(testing::Runfile("tests/testdata/models/t.gdn"));
  ASSERT_TRUE(file.ok()) << file.status();
  TargetConfig config = (*file)->target_config();
  config.rms_norm_eps = 1.0f;
  const std::vector<TokenId> tokens = {1, 2, 3, 4};
  const int32_t rows = static_cast<int32_t>(tokens.size());
  const auto model = MakeTargetModel(config, (*file)->target_weights(),
                                     /*taps=*/{}, rows, {}, nullptr);
  ASSERT_TRUE(model.ok()) << model.status();
  auto sequence = MakeTargetSequence(config, /*capacity=*/16, rows);
  ASSERT_TRUE(sequence.ok()) << sequence.status();
  TargetPass pass;
  pass.tokens = tokens;
  pass.plan = *sequence->cursor.Plan(rows);
  pass.sequence = &*sequence;
  sequence->cursor.Begin(pass.plan);
  ASSERT_TRUE((*model)->Run(pass).ok());

  const GdnConfig& gdn = config.gdn;
  const int32_t written = 1 - sequence->cursor.journal();
  for (int32_t i = 0; i < sequence->recurrent.shape().layers; ++i) {
    const float* k = sequence->recurrent.journal(i, written).k;
    for (int32_t head = 0; head < rows * gdn.key_heads; ++head) {
      double sum = 0.0;
      for (int32_t c = 0; c < gdn.key_dim; ++c, ++k) sum += double{*k} * *k;
      EXPECT_NEAR(std::sqrt(sum), 1.0, 1e-2) << "layer " << i << ", " << head;
    }
  }
}

}  // namespace
}  // namespace deltaedge
