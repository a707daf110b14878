#include "server/branch_saves.h"

#include <fstream>
#include <string>
#include <utility>

#include "dendrite/error.h"
#include "server/branches.h"
#include "server/files.h"
#include "server/ids.h"

namespace dendrite::server {
namespace {

/// Where there is no branch there is no snapshot, and the attachment stands alone.
bool is_attachment_alone(const std::filesystem::path& file) {
  return std::ifstream(file).peek() == '{';
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

BranchSaves::BranchSaves(Branches& all, std::filesystem::path folder)
    : all_(all), folder_(std::move(folder)) {
  const std::uint64_t keys = all.service.options.api_keys.size();
  for (std::uint64_t key = keys == 0 ? 0 : 1; key <= keys; ++key) restore(key);
  thread_ = std::thread([this] { loop(); });
}

BranchSaves::~BranchSaves() {
  end_thread();
}

std::filesystem::path BranchSaves::file_of(std::uint64_t key) const {
  return folder_ / ("branches-" + hash_hex(all_.service.key_name(key)) + ".dendrite");
}

void BranchSaves::restore(std::uint64_t key) {
  const std::filesystem::path file = file_of(key);
  if (!std::filesystem::exists(file)) return;
  std::string attachment;
  std::vector<Branch> branches;
  if (is_attachment_alone(file)) {
    std::getline(std::ifstream(file), attachment);
  } else {
    Restored restored = all_.service.engine.restore(file);
    all_.service.turns.adopt({key}, restored.session);
    branches = std::move(restored.branches);
    attachment = std::move(restored.attachment);
  }
  try {
    const Json json = Json::parse(attachment);
    const Json& names = json.at("branches");
    if (names.size() != branches.size()) throw std::out_of_range("branches");
    if (!json.at("effects").is_null()) {
      all_.effects.restore(key, all_.service.turns.session({key}), json["effects"], branches);
    }
    for (std::size_t i = 0; i < branches.size(); ++i) {
      BranchStore::Held held;
      held.id = names[i].at("id");
      held.parent = names[i].at("parent");
      held.shared = names[i].at("shared");
      held.key = key;
      held.branch = std::move(branches[i]);
      all_.store.restore(std::move(held));
    }
  } catch (const std::exception& error) {
    throw Error("--response-store: " + file.string() +
                ": it does not say whose its branches are: " + error.what());
  }
}

/// False: the file is as it was.
bool BranchSaves::save(std::uint64_t key, bool kv) {
  KeyEffects* effects = all_.effects.find(key);
  std::int64_t last_event = 0;
  bool ok = false;
  try {
    if (effects != nullptr) effects->settle();
    std::string bytes;
    all_.store.use_all(key, [&](std::span<BranchStore::Held* const> held) {
      Json names = Json::array();
      std::vector<const Branch*> branches;
      for (const BranchStore::Held* each : held) {
        const Branch& branch = each->branch.valid() ? each->branch : each->before;
        if (!branch.valid()) continue;
        branches.push_back(&branch);
        names.push_back({{"id", each->id}, {"parent", each->parent}, {"shared", each->shared}});
      }
      const Json attachment = {
          {"branches", std::move(names)},
          {"effects", effects == nullptr ? Json() : effects->save(last_event)}};
      SaveOptions options{.attachment = dump(attachment), .kv = kv};
      if (branches.empty()) {
        bytes = std::move(options.attachment);
        return;
      }
      Session& session = all_.service.turns.session({key});
      if (kv) {
        session.save(file_of(key), branches, options);
        ok = true;
      } else {
        bytes = text_of(session.snapshot(branches, options));
      }
    });
    if (!ok) ok = replace_file(file_of(key), bytes);
  } catch (const std::exception&) {
    ok = false;
  }
  if (ok && effects != nullptr) effects->log().show(last_event);
  return ok;
}

void BranchSaves::after_save(std::uint64_t key, Told told, bool changed) {
  {
    const std::lock_guard lock(mutex_);
    if (changed || waiting_.contains(key) || saving_ == key) {
      waiting_[key].push_back(std::exchange(told, nullptr));
    }
  }
  if (told) return told(std::nullopt);
  wake_.notify_one();
}

void BranchSaves::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const auto next = waiting_.extract(waiting_.begin());
    saving_ = next.key();
    lock.unlock();
    std::optional<Fault> fault;
    if (!save(next.key(), false)) {
      fault.emplace(500, "server_error", "", "",
                    "it was done, and could not be saved: it ends with the server's process");
      fault->retry = false;
    }
    for (const Told& told : next.mapped()) told(fault);
    lock.lock();
    saving_.reset();
  }
}

void BranchSaves::end_thread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void BranchSaves::finish() {
  end_thread();
  for (const std::uint64_t key : all_.store.keys()) save(key, true);
}

}  // namespace dendrite::server
