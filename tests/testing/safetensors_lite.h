// SPDX-License-Identifier: Apache-2.0

#ifndef DELTAEDGE_TESTS_TESTING_SAFETENSORS_LITE_H_
#define DELTAEDGE_TESTS_TESTING_SAFETENSORS_LITE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"

namespace deltaedge::testing {

// One tensor of a golden file, widened to what tests compute in.
struct GoldenTensor {
  std::string dtype;           // as in the file: "F32", "BF16", "I32", ...
  std::vector<int64_t> shape;  // outermost first
  std::vector<float> floats;   // F32, F16 is not read, BF16; row-major
  std::vector<int64_t> ints;   // I64, I32, U8, BOOL; row-major

  int64_t dim(size_t i) const { return i < shape.size() ? shape[i] : 1; }
  int64_t size() const {
    int64_t product = 1;
    for (const int64_t extent : shape) product *= extent;
    return product;
  }
};

// A minimal reader of safetensors files that the tests themselves ship: 8 bytes
// little-endian header length, JSON header, data. A file that cannot be read is
// empty() and has an error().
//
//   const Golden golden("tests/testdata/ops/gates.safetensors");
//   ASSERT_EQ(golden.error(), "");
//   const GoldenTensor& a = golden["a"];
class Golden {
 public:
  // `path` from the workspace root; Bazel runs tests in the runfiles folder.
  explicit Golden(const std::string& path) { error_ = Load(path); }

  const std::string& error() const { return error_; }
  bool empty() const { return tensors_.empty(); }
  bool Has(const std::string& name) const { return tensors_.count(name) != 0; }

  // An absent name gives an empty tensor: no shape, no values.
  const GoldenTensor& operator[](const std::string& name) const {
    static const GoldenTensor* const kNone = new GoldenTensor();
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? *kNone : found->second;
  }

  const std::map<std::string, GoldenTensor>& tensors() const {
    return tensors_;
  }

 private:
  std::string Load(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return path + ": cannot be opened";
    const std::string bytes((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    if (bytes.size() < 8) return path + ": shorter than its header length";
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; --i) {
      header_bytes = header_bytes << 8 | static_cast<unsigned char>(bytes[i]);
    }
    if (header_bytes > bytes.size() - 8) return path + ": header is cut";
    const char* data = bytes.data() + 8 + header_bytes;
    const size_t data_bytes = bytes.size() - 8 - header_bytes;
    const nlohmann::json header = nlohmann::json::parse(
        bytes.data() + 8, data, nullptr, /*allow_exceptions=*/false);
    if (!header.is_object()) return path + ": header is not JSON";

    std::map<std::string, GoldenTensor> tensors;
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__") continue;
      GoldenTensor tensor;
      tensor.dtype = entry["dtype"].get<std::string>();
      tensor.shape = entry["shape"].get<std::vector<int64_t>>();
      const size_t begin = entry["data_offsets"][0].get<size_t>();
      const size_t end = entry["data_offsets"][1].get<size_t>();
      if (begin > end || end > data_bytes ||
          !Decode(data + begin, end - begin, &tensor)) {
        return path + ": tensor " + name + " of type " + tensor.dtype +
               " is unsound or not supported";
      }
      tensors.emplace(name, std::move(tensor));
    }
    tensors_ = std::move(tensors);
    return "";
  }

  static bool Decode(const char* data, size_t bytes, GoldenTensor* tensor) {
    const size_t size = static_cast<size_t>(tensor->size());
    const std::string& dtype = tensor->dtype;
    if (dtype == "F32") return Widen<float>(data, bytes, size, &tensor->floats);
    if (dtype == "I64") return Widen<int64_t>(data, bytes, size, &tensor->ints);
    if (dtype == "I32") return Widen<int32_t>(data, bytes, size, &tensor->ints);
    if (dtype == "U8" || dtype == "BOOL") {
      return Widen<uint8_t>(data, bytes, size, &tensor->ints);
    }
    if (dtype != "BF16") return false;
    std::vector<uint32_t> bits;
    if (!Widen<uint16_t>(data, bytes, size, &bits)) return false;
    tensor->floats.resize(size);
    for (size_t i = 0; i < size; ++i) {
      bits[i] <<= 16;
      std::memcpy(&tensor->floats[i], &bits[i], sizeof(float));
    }
    return true;
  }

  template <class Stored, class Value>
  static bool Widen(const char* data, size_t bytes, size_t size,
                    std::vector<Value>* out) {
    if (bytes != size * sizeof(Stored)) return false;
    out->resize(size);
    for (size_t i = 0; i < size; ++i) {
      Stored stored;
      std::memcpy(&stored, data + i * sizeof(Stored), sizeof(Stored));
      (*out)[i] = static_cast<Value>(stored);
    }
    return true;
  }

  std::string error_;
  std::map<std::string, GoldenTensor> tensors_;
};

}  // namespace deltaedge::testing

#endif  // DELTAEDGE_TESTS_TESTING_SAFETENSORS_LITE_H_
