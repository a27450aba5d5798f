// SPDX-License-Identifier: Apache-2.0

#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cassert>
#include <cfloat>
#include <cmath>
#include <limits>

#include "engine/sampling/philox.h"

namespace deltaedge {

namespace {

// exp(x) * 2^62 / V is below 1 from here on, whatever V.
constexpr double kLowestX = -43.0;
// Enough for what falls into one of them to be sorted in no time.
constexpr int kMaxBuckets = 4096;

}  // namespace

void Sampler::Start(const SamplingOptions& options, uint64_t seed,
                    absl::Span<const TokenId> sequence) {
  options_ = options;
  seed_ = seed;
  // Comparisons that hold with denormals as they are and with denormals as 0.
  if (options.temperature < FLT_MIN) options_.temperature = 0.0f;
  repetition_penalty_ = std::max(options.repetition_penalty, FLT_MIN);
  penalties_ = options.repetition_penalty != 1.0f ||
               options.presence_penalty != 0.0f ||
               options.frequency_penalty != 0.0f;
  greedy_ =
      options_.temperature == 0.0f && !penalties_ && options.logit_bias.empty();
  touched_.clear();
  pushed_.clear();
  if (options.repetition_penalty != 1.0f) {
    std::vector<TokenId> ids(sequence.begin(), sequence.end());
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    for (const TokenId id : ids) {
      touched_.push_back({id, /*count=*/0, /*in_sequence=*/true});
    }
  }
  for (const LogitBias& bias : options.logit_bias) {
    Find(bias.token).bias = bias.bias;
  }
}

void Sampler::Push(TokenId token) {
  if (!penalties_) return;
  ++Find(token).count;
  pushed_.push_back(token);
}

void Sampler::Pop() {
  if (!penalties_) return;
  assert(!pushed_.empty());
  --Find(pushed_.back()).count;
  pushed_.pop_back();
}

TokenId Sampler::Pick(absl::Span<const float> scores, int64_t position) {
  assert(!scores.empty());
  if (options_.temperature == 0.0f) return Best(scores).id;
  const int32_t vocab_size = static_cast<int32_t>(scores.size());
  const double uniform = UniformAt(seed_, position);
  if (options_.top_k == 0 || options_.top_k >= vocab_size) {
    return Draw(Best(scores).score, vocab_size, vocab_size, uniform,
                [this, scores](const auto& visit) { ForEach(scores, visit); });
  }
  KeepFirst(scores, options_.top_k);
  const double best =
      std::min_element(kept_.begin(), kept_.end(), Before)->score;
  return Draw(best, vocab_size, options_.top_k, uniform,
              [this](const auto& visit) {
                for (const Candidate& kept : kept_) visit(kept.id, kept.score);
              });
}

Sampler::Touched& Sampler::Find(TokenId token) {
  auto it = std::lower_bound(
      touched_.begin(), touched_.end(), token,
      [](const Touched& touched, TokenId id) { return touched.id < id; });
  if (it == touched_.end() || it->id != token) {
    it = touched_.insert(it, Touched{token});
  }
  return *it;
}

double Sampler::Adjusted(float score, const Touched& touched) const {
  double s = score;
  if (touched.in_sequence || touched.count > 0) {
    s = s > 0.0 ? s / repetition_penalty_ : s * repetition_penalty_;
  }
  if (touched.count > 0) {
    s -= options_.presence_penalty;
    s -= double{options_.frequency_penalty} * touched.count;
  }
  return s + touched.bias;
}

template <typename Visit>
void Sampler::ForEach(absl::Span<const float> scores,
                      const Visit& visit) const {
  const TokenId end = static_cast<TokenId>(scores.size());
  const float* const data = scores.data();
  auto touched = touched_.begin();
  TokenId next = touched == touched_.end() ? end : touched->id;
  // One place that visits, so that it is inlined.
  for (TokenId id = 0; id < end; ++id) {
    double s = data[id];
    if (id == next) {
      s = Adjusted(data[id], *touched++);
      next = touched == touched_.end() ? end : touched->id;
    }
    visit(id, s);
  }
}

Sampler::Candidate Sampler::Best(absl::Span<const float> scores) const {
  Candidate best{0, -std::numeric_limits<double>::infinity()};
  ForEach(scores, [&best](TokenId id, double s) {
    if (s > best.score) best = {id, s};
  });
  return best;
}

void Sampler::KeepFirst(absl::Span<const float> scores, size_t count) {
  kept_.clear();
  kept_.reserve(std::min(2 * count, scores.size()));
  const auto cut = [this, count] {
    const auto end = kept_.begin() + count;
    std::nth_element(kept_.begin(), end - 1, kept_.end(), Before);
    kept_.erase(end, kept_.end());
  };
  // A later token with an equal score has a higher id, so it stays out.
  double bar = -std::numeric_limits<double>::infinity();
  ForEach(scores, [&](TokenId id, double s) {
    if (s <= bar) return;
    kept_.push_back({id, s});
    if (kept_.size() == 2 * count) {
      cut();
      bar = kept_.back().score;
    }
  });
  if (kept_.size() > count) cut();
}

template <typename ForEachLeft>
TokenId Sampler::Draw(double best, int32_t vocab_size, int32_t count,
                      double uniform, const ForEachLeft& for_each) {
  const double per_temperature = 1.0 / options_.temperature;
  const double scale = 0x1p62 / vocab_size;
  const auto weight = [scale](double x) {
    return static_cast<int64_t>(scale * std::exp(x));
  };
  const int buckets = std::min(count, kMaxBuckets);
  const double buckets_per_x = buckets / kLowestX;
  // One comparison for the branch predictor to be right about, not two.
  const auto bucket_of = [buckets, buckets_per_x](double x) {
    return static_cast<int>(std::min(x * buckets_per_x, buckets + 1.0));
  };
  const double min_x = options_.min_p > 0.0f
                           ? std::log(double{options_.min_p})
                           : -std::numeric_limits<double>::infinity();
  const bool all = options_.top_p == 1.0f;
  const double lowest = all ? std::max(kLowestX, min_x) : kLowestX;

  // Sorting a whole vocabulary takes longer than all else. Buckets of equal
  // ranges of x are in order already; only what is in the one bucket where the
  // sum passes a mark needs to be sorted.
  bucket_sums_.assign(buckets + 1, 0);
  bucket_.reserve(buckets);
  int64_t total = 0;
  int64_t left = 0;
  for_each([&](TokenId, double s) {
    const double x = (s - best) * per_temperature;
    if (x < lowest) return;
    const int64_t w = weight(x);
    bucket_sums_[bucket_of(x)] += w;
    total += w;
    if (x >= min_x) left += w;
  });

  struct Mark {
    TokenId id;
    int64_t sum;
  };
  // The first token in order whose sum is above `mark`, which is below total.
  const auto pass = [&](int64_t mark) {
    int bucket = 0;
    int64_t sum = 0;
    while (sum + bucket_sums_[bucket] <= mark) sum += bucket_sums_[bucket++];
    bucket_.clear();
    for_each([&](TokenId id, double s) {
      if (bucket_of((s - best) * per_temperature) == bucket) {
        bucket_.push_back({id, s});
      }
    });
    std::sort(bucket_.begin(), bucket_.end(), Before);
    auto it = bucket_.begin();
    while ((sum += weight((it->score - best) * per_temperature)) <= mark) ++it;
    return Mark{it->id, sum};
  };

  if (!all) {
    const double needed =
        std::ceil(options_.top_p * static_cast<double>(total));
    const int64_t mark = std::min(static_cast<int64_t>(needed), total) - 1;
    left = std::min(left, pass(std::max<int64_t>(mark, 0)).sum);
  }
  const double drawn = uniform * static_cast<double>(left);
  return pass(std::min(static_cast<int64_t>(drawn), left - 1)).id;
}

}  // namespace deltaedge
