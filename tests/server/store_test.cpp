// Responses that are kept, and the journal that they survive in.
#include "server/store.h"

#include <gtest/gtest.h>

#include <fstream>
#include <future>
#include <sstream>
#include <thread>

#include "dendrite/error.h"
#include "server/store_journal.h"
#include "support/temporary_folder.h"

namespace dendrite::server {
namespace {

using dendrite::TemporaryFolder;
using Pointer = ResponseStore::Pointer;

Pointer response(const std::string& id, std::uint64_t key = 0) {
  auto made = std::make_shared<StoredResponse>();
  made->head.id = id;
  made->key = key;
  made->end.emplace();
  return made;
}

TEST(ResponseStore, IdsOfOneKeyAreNotFoundByAnother) {
  ResponseStore store({});
  store.put(response("a", 1));
  EXPECT_NE(store.find("a", 1), nullptr);
  EXPECT_EQ(store.find("a", 2), nullptr);
  EXPECT_EQ(store.erase("a", 2), nullptr);
  EXPECT_NE(store.erase("a", 1), nullptr);
  EXPECT_EQ(store.find("a", 1), nullptr);
}

TEST(ResponseStore, TheOneUsedLongestAgoGoesFirst) {
  ResponseStore store({.responses = 2});
  store.put(response("a"));
  store.put(response("b"));
  store.find("a", 0);
  store.put(response("c"));
  EXPECT_EQ(store.size(), 2U);
  EXPECT_EQ(store.find("b", 0), nullptr);
  EXPECT_NE(store.find("a", 0), nullptr);
}

TEST(ResponseStore, WhatRunsStaysAndIsNotYetToGoOnFrom) {
  ResponseStore store({.responses = 1, .ttl = std::chrono::seconds(10)});
  Pointer running = response("a");
  running->end.reset();
  store.put(running);
  store.put(response("b"));
  EXPECT_NE(store.find("a", 0), nullptr);
  EXPECT_EQ(store.find_ended("a", 0), nullptr);
  const auto later = ResponseStore::Clock::now() + std::chrono::seconds(60);
  EXPECT_TRUE(store.sweep(later).empty());
  store.ended("a");
  EXPECT_NE(store.find_ended("a", 0), nullptr);
  EXPECT_EQ(store.sweep(later), std::vector<std::string>{"a"});
  EXPECT_EQ(store.size(), 0U);
}

TEST(ResponseStore, AConversationIsThatOfAllBefore) {
  Pointer last;
  for (int i = 0; i < 3; ++i) {
    Pointer next = response(std::to_string(i));
    next->previous = last;
    next->input = {"in" + std::to_string(i)};
    next->output = {"out" + std::to_string(i)};
    last = next;
  }
  EXPECT_EQ(last->conversation().dump(), R"(["in0","out0","in1","out1","in2","out2"])");
}

TEST(ResponseStore, LongConversationsEndWithoutDeepStacks) {
  Pointer last;
  for (int i = 0; i < 500'000; ++i) {
    Pointer next = std::make_shared<StoredResponse>();
    next->previous = std::move(last);
    last = std::move(next);
  }
  last.reset();
}

void append(Journal& journal, const std::string& line) {
  std::promise<bool> synced;
  journal.append(line, [&](bool ok) { synced.set_value(ok); });
  EXPECT_TRUE(synced.get_future().get());
}

std::string bytes_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

TEST(Journal, LinesComeBack) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  {
    Journal journal(folder.path());
    EXPECT_TRUE(journal.read().empty());
    append(journal, "one");
    append(journal, "two");
  }
  Journal journal(folder.path());
  EXPECT_EQ(journal.read(), (std::vector<std::string>{"one", "two"}));
}

TEST(Journal, WhatIsBehindTheMarkStaysWhenTheRestIsReplaced) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  {
    Journal journal(folder.path());
    append(journal, "one");
    append(journal, "two");
    EXPECT_TRUE(journal.mark());
    EXPECT_FALSE(journal.mark());
    append(journal, "three");
    journal.replace({"two"});
    append(journal, "four");
    while (!journal.mark()) std::this_thread::yield();
    EXPECT_EQ(journal.lines(), 3U);
  }
  EXPECT_EQ(Journal(folder.path()).read(), (std::vector<std::string>{"two", "three", "four"}));
}

TEST(Journal, ATornTailIsCutWhereverItIsTorn) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  const std::filesystem::path file = folder.path() / "responses.journal";
  {
    Journal journal(folder.path());
    append(journal, "one");
    append(journal, "two");
  }
  const std::string whole = bytes_of(file);
  const std::size_t second = whole.find('\n') + 1;
  for (std::size_t size = second; size < whole.size(); ++size) {
    std::ofstream(file, std::ios::binary) << whole.substr(0, size);
    Journal journal(folder.path());
    EXPECT_EQ(journal.read(), std::vector<std::string>{"one"}) << size;
    append(journal, "three");
    EXPECT_EQ(journal.read(), (std::vector<std::string>{"one", "three"})) << size;
  }
}

TEST(Journal, ADamagedLineEndsWhatIsRead) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  const std::filesystem::path file = folder.path() / "responses.journal";
  {
    Journal journal(folder.path());
    append(journal, "one");
    append(journal, "two");
  }
  std::string text = bytes_of(file);
  text[text.size() - 2] ^= 1;
  std::ofstream(file, std::ios::binary) << text;
  EXPECT_EQ(Journal(folder.path()).read(), std::vector<std::string>{"one"});
}

TEST(Journal, OneProcessHasIt) {
  const TemporaryFolder folder(TemporaryFolder::Where::kMemory);
  const Journal journal(folder.path());
  EXPECT_THROW(Journal second(folder.path()), Error);
}

}  // namespace
}  // namespace dendrite::server
