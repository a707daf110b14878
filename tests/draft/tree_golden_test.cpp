// Trees of drafts against tools/golden/drafters/trees.py: the same nodes, in the same order.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "draft/lattice.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;

class GoldenLattice final : public Lattice {
 public:
  explicit GoldenLattice(const Json& golden) : golden_(golden) {}

  std::span<const DraftChild> children(std::int32_t key) override {
    const std::vector<Token> path = paths_[static_cast<std::size_t>(key)];
    std::string name = golden_.at("by_path").get<bool>() ? "" : std::to_string(path.size() + 1);
    if (name.empty()) {
      for (const Token token : path) name += (name.empty() ? "" : ",") + std::to_string(token);
    }
    std::vector<DraftChild>& out = known_[key];
    if (golden_.at("children").contains(name)) {
      for (const Json& child : golden_.at("children").at(name)) {
        out.push_back({child[0], child[1], static_cast<std::int32_t>(paths_.size())});
        paths_.push_back(path);
        paths_.back().push_back(out.back().token);
      }
    }
    return out;
  }

 private:
  const Json& golden_;
  std::vector<std::vector<Token>> paths_ = {{}};  // by key
  std::map<std::int32_t, std::vector<DraftChild>> known_;
};

TEST(DraftTreeGolden, HasTheNodesOfTheOracleInItsOrder) {
  std::ifstream file(DENDRITE_TEST_DATA "/drafters/trees.json");
  const Json golden = Json::parse(file);
  ASSERT_EQ(golden.at("cases").size(), 12U);
  for (const Json& one : golden.at("cases")) {
    GoldenLattice lattice(one);
    const std::vector<DraftNode> nodes = build_draft(
        lattice, {one.at("nodes"), one.at("depth"), one.at("least"), one.at("chain_first")});
    SCOPED_TRACE(::testing::Message() << one.at("nodes") << " nodes, depth " << one.at("depth")
                                      << ", least " << one.at("least"));
    ASSERT_EQ(nodes.size(), one.at("tree").size());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const Json& expected = one.at("tree")[i];
      ASSERT_EQ(nodes[i].token, expected[0].get<Token>()) << "node " << i;
      EXPECT_EQ(nodes[i].parent, expected[1].get<std::int32_t>()) << "node " << i;
      EXPECT_EQ(nodes[i].depth, expected[2].get<std::int32_t>()) << "node " << i;
      EXPECT_NEAR(nodes[i].score, expected[3].get<double>(), 1e-9) << "node " << i;
    }
  }
}

}  // namespace
}  // namespace dendrite
