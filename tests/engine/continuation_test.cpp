// Texts that are added to branches are encoded as what follows them, by every door.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;
using test::Tokens;

/// A model whose tokenizer puts a space in front of every text.
class Continuation : public testing::Test {
 protected:
  static Engine open(const fs::path& folder) {
    for (const fs::path file : {"config.json", "generation_config.json", "model.safetensors"}) {
      if (fs::exists(test::model_path("qwen3") / file)) {
        fs::copy(test::model_path("qwen3") / file, folder / file);
      }
    }
    const fs::path tokenizer = test::model_path("qwen3") / "../../text/tokenizers/unigram";
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy(tokenizer / file, folder / file);
    }
    EngineOptions options{.threads = 1, .kv_tokens = 4096};
    if (test::on_cuda()) options.device = "cuda";
    return Engine::load(folder.string(), options);
  }

  /// The tokens of both less the first one's.
  Tokens rest(const std::string& text, const std::string& more) const {
    const Tokens front = engine_.encode(text, false);
    const Tokens whole = engine_.encode(text + more, false);
    EXPECT_TRUE(std::equal(front.begin(), front.end(), whole.begin())) << text << "|" << more;
    return {whole.begin() + std::ssize(front), whole.end()};
  }

  /// Without the end of sequence that the tokenizer puts behind each text.
  Branch prefill(const std::string& text) { return session_.prefill(engine_.encode(text, false)); }

  TemporaryFolder folder_;
  Engine engine_ = open(folder_.path());
  Session session_{engine_};
  const std::string one_ = "The tree shares";
  const std::string other_ = "The tree shares 24";
};

TEST_F(Continuation, IsWhatFollowsTheBranch) {
  for (const std::string text : {" pages", ", and", ":", ".\nThe"}) {
    SCOPED_TRACE(text);
    const Tokens wanted = rest(one_, text);
    if (text[0] != ' ') {
      EXPECT_NE(wanted, rest("", text));
    }
    Branch branch = prefill(one_);
    EXPECT_EQ(branch.encode(text), wanted);
    EXPECT_EQ(engine_.encode_after(branch.tokens(), text), wanted);
    Branch added = branch.fork();
    added.append(text);
    EXPECT_EQ(added.tokens(), test::joined(branch.tokens(), wanted));
    EXPECT_EQ(branch.score({text}).front().tokens, branch.score_tokens({wanted}).front().tokens);
    EXPECT_EQ(branch.select({text}), 0u);
    EXPECT_EQ(branch.tokens(), added.tokens());
  }
  EXPECT_TRUE(prefill(one_).encode("").empty());
}

TEST_F(Continuation, IsABeginningBehindNoText) {
  const Branch branch = session_.prefill("");
  EXPECT_EQ(branch.encode("pages"), engine_.encode("pages", false));
  EXPECT_EQ(engine_.encode_after({}, "pages"), engine_.encode("pages", false));
}

TEST_F(Continuation, IsScoredBehindEachBranchAsItFollowsIt) {
  std::vector<Branch> branches;
  branches.push_back(prefill(one_));
  branches.push_back(prefill(other_));
  branches.push_back(session_.prefill(""));
  const std::vector<std::string> texts{":", " pages"};
  const auto scores = session_.score(branches, texts);
  PendingScore pending = session_.submit_score(branches, texts);
  const auto submitted = pending.get();
  for (std::size_t i = 0; i < branches.size(); ++i) {
    for (std::size_t j = 0; j < texts.size(); ++j) {
      const Tokens tokens = branches[i].encode(texts[j]);
      EXPECT_EQ(scores[i][j].tokens, branches[i].score_tokens({tokens}).front().tokens);
      EXPECT_EQ(submitted[i][j].tokens, scores[i][j].tokens);
    }
  }
  EXPECT_NE(branches[0].encode("pages"), branches[2].encode("pages"));
}

TEST_F(Continuation, RefusesListsThatAreNotOneForEachBranch) {
  std::vector<Branch> branches = prefill(one_).fork(3);
  std::vector<Branch*> three{&branches[0], &branches[1], &branches[2]};
  EXPECT_THROW(session_.score_tokens_of_each(three, {{{5}}, {{6}}}), Error);
  EXPECT_EQ(session_.score_tokens_of_each(three, {{{5}}, {{6}}, {{7}, {8}}})[2].size(), 2u);
}

TEST_F(Continuation, IsWhatFollowsThePiecesOfAComposition) {
  const Tokens front = engine_.encode(one_, false);
  const Tokens more = rest(one_, " pages");
  const Tokens last = rest(one_ + " pages", ", and");
  Branch source = prefill(one_);
  for (const Piece& first : {Piece::tokens(front), Piece::span(source, 0, source.length())}) {
    const Composed composed =
        session_.compose(std::vector<Piece>{first, Piece::text(" pages"), Piece::text(", and")});
    EXPECT_EQ(composed.branch.tokens(), test::joined(test::joined(front, more), last));
  }
  // A chunk has its tokens wherever it will stand: those behind a line end.
  EXPECT_EQ(session_.register_chunk("shares pages").tokens(),
            engine_.encode_after(engine_.encode("\n", false), "shares pages"));
}

}  // namespace
}  // namespace dendrite
