// Sessions are saved and restored: beside themselves, in place of themselves, in an engine that was
// started anew, and in the reference engine.
#include <algorithm>
#include <filesystem>
#include <fstream>

#include "dendrite/error.h"
#include "fuzz/operations.h"

namespace dendrite::fuzz {
namespace {

/// What comes back when a file is restored.
struct Saved {
  std::filesystem::path file;
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::map<std::vector<Token>, std::uint64_t> prompts;
  struct Image {
    BranchId id = BranchId::kNone;
    History history;
    Lineage lineage;
    std::uint64_t forks = 0;
    double logprob = 0;
    int priority = 0;
  };
  std::vector<Image> images;
};

Saved save(World& world, Owner& owner, const std::vector<Mirror*>& mirrors) {
  Saved saved;
  saved.file = world.scratch() / ("session" + std::to_string(owner.number));
  saved.seed = owner.seed;
  saved.stream = owner.stream;
  saved.prompts = owner.prompts;
  for (const Mirror* mirror : mirrors) {
    saved.images.push_back({mirror->branch.id(), mirror->history(), mirror->lineage, mirror->forks,
                            mirror->logprob, mirror->priority});
  }
  if (mirrors.size() == world.mirrors().of(owner).size()) {  // all that live, by id
    std::ranges::sort(saved.images, {}, &Saved::Image::id);
    owner.session->save(saved.file);
  } else {
    Batch batch(mirrors);
    owner.session->save(saved.file, batch.branches());
  }
  return saved;
}

/// The session and its branches, and mirrors for them.
void restore(World& world, Draws& draws, const Saved& saved) {
  Restored restored = world.engine().restore(saved.file);
  require(restored.branches.size() == saved.images.size(), "restore: other branches than saved");
  require(restored.note.empty() == restored.kv_restored,
          "restore: it says why K and V are missing if and only if they are");
  Owner& owner = world.adopt(std::move(restored.session), saved.seed, saved.stream, saved.prompts);
  world.say("    restored as s", owner.number, restored.kv_restored ? "" : ", without K and V");
  for (std::size_t i = 0; i < saved.images.size(); ++i) {
    const Saved::Image& image = saved.images[i];
    require(restored.branches[i].id() == image.id, "restore: a branch has another id");
    Mirror& mirror =
        world.mirrors().add(std::move(restored.branches[i]), owner, image.history, image.lineage);
    mirror.forks = image.forks;
    mirror.logprob = image.logprob;
    mirror.priority = image.priority;
    if (draws.one_in(4)) world.compare_bits(mirror);
  }
  ++world.counts().restores;
}

/// Another engine, with pages of another size, goes on with one of the branches.
void restore_elsewhere(World& world, Draws& draws, const Saved& saved) {
  const auto i = static_cast<std::size_t>(draws.below(std::ssize(saved.images)));
  DecodeParams params;
  params.max_tokens = draws.in(1, 6);
  params.temperature = 1;
  Generation got;
  {
    Restored restored = world.reference().engine().restore(saved.file);
    require(restored.branches.size() == saved.images.size(), "restore: other branches than saved");
    got = restored.session.decode(restored.branches[i], params);
  }
  Replay replay = world.reference().replay(saved.images[i].history);
  const Generation expected = replay.session.decode(replay.branch, params);
  require(got.ids == expected.ids && got.text == expected.text && got.finish == expected.finish,
          "restore: in another engine a branch goes on otherwise");
  ++world.counts().comparisons;
  ++world.counts().restores;
}

/// A file with one byte changed, or cut short, is refused, and nothing happens.
void restore_damaged(World& world, Draws& draws, const Saved& saved) {
  const std::int64_t size = static_cast<std::int64_t>(std::filesystem::file_size(saved.file));
  const std::int64_t place = draws.below(size);
  if (draws.one_in(2)) {
    std::filesystem::resize_file(saved.file, static_cast<std::uintmax_t>(place));
  } else {
    std::fstream file(saved.file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(place);
    const int byte = file.get();
    file.seekp(place);
    file.put(static_cast<char>(byte ^ (1 << draws.below(8))));
  }
  world.say("    a damaged file, at ", place, " of ", size);
  try {
    const Restored restored = world.engine().restore(saved.file);
    // Where K and V could not come back anyway, nobody looked at their bytes.
    if (!restored.kv_restored) return;
  } catch (const Error&) {
    return;
  }
  throw Violation("restore: a damaged file was taken for a good one, at " + std::to_string(place) +
                  " of " + std::to_string(size));
}

}  // namespace

void save_restore(World& world, Draws& draws) {
  Mirror* first = world.any_decodable(draws);
  if (first == nullptr) return;
  Owner& owner = *first->owner;
  const std::vector<Mirror*> mirrors =
      draws.one_in(2) ? world.company(draws, *first, 8) : world.mirrors().of(owner);
  world.say("s", owner.number, ": save ", names_of(mirrors));
  const Saved saved = save(world, owner, mirrors);
  if (draws.one_in(4)) restore_elsewhere(world, draws, saved);
  const bool beside = draws.one_in(3);
  if (!beside) world.close(owner, true);
  const auto after = std::ssize(world.branches()) + std::ssize(saved.images);
  if (after <= World::kMostBranches) restore(world, draws, saved);
  if (draws.one_in(4)) restore_damaged(world, draws, saved);
}

void restart(World& world, Draws& draws) {
  std::vector<Saved> all;
  for (const auto& owner : world.owners()) {
    if (owner->session) all.push_back(save(world, *owner, world.mirrors().of(*owner)));
  }
  world.say("restart with ", all.size(), " saved sessions");
  world.restart();
  for (const Saved& saved : all) restore(world, draws, saved);
}

}  // namespace dendrite::fuzz
