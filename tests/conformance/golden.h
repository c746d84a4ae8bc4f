// SPDX-License-Identifier: Apache-2.0
//
// Golden vectors: results that the reference systems themselves computed. They
// are in tests/conformance/golden, or in $SHARD_GOLDEN_DIR.

#ifndef SHARD_TESTS_CONFORMANCE_GOLDEN_H_
#define SHARD_TESTS_CONFORMANCE_GOLDEN_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace shard {

// Returns the file's contents. Fails the test and returns an empty document
// when there is no such file.
inline nlohmann::json LoadGolden(const std::string& file) {
  const char* dir = std::getenv("SHARD_GOLDEN_DIR");
  const std::string path =
      std::string(dir != nullptr ? dir : "tests/conformance/golden") + "/" +
      file;
  std::ifstream stream(path);
  nlohmann::json document = nlohmann::json::parse(stream, nullptr, false);
  if (document.is_discarded()) {
    ADD_FAILURE() << path << " cannot be read; run from the repository's root "
                  << "or set SHARD_GOLDEN_DIR";
    return nlohmann::json::object();
  }
  return document;
}

}  // namespace shard

#endif  // SHARD_TESTS_CONFORMANCE_GOLDEN_H_
