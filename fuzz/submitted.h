#pragma once

#include <atomic>
#include <memory>

#include "fuzz/agent.h"

namespace dendrite::fuzz {

/// A call of an agent that was submitted and goes on while the agent does other things.
class Submitted {
 public:
  virtual ~Submitted() = default;

  /// One thing that one may do with a handle, which may take its time. True: it has ended the call.
  bool use(Agent& agent);
  /// Waits for its end and takes what it gave. It is over then.
  virtual void end(Agent& agent) = 0;
  /// Lets go of the handle, without knowing how far the call has come.
  virtual void drop(Agent& agent) = 0;

 protected:
  virtual Pending& pending() = 0;
  /// What only this kind of call can do.
  virtual void look(Agent& /*agent*/) {}
  /// Somebody may cancel it, or wants to hear of its end.
  template <typename Handle>
  void publish(Agent& agent, const std::shared_ptr<Handle>& handle) {
    if (agent.draws().one_in(3)) {
      const std::weak_ptr<Handle> weak = handle;
      agent.board().add([weak, asked = cancelled_] {
        const std::shared_ptr<Handle> there = weak.lock();
        if (there == nullptr) return;
        *asked = true;
        there->cancel();
      });
    }
    if (agent.draws().one_in(3)) listen(agent);
  }
  void listen(Agent& agent);
  void cancel();
  bool cancelled() const { return *cancelled_; }

 private:
  std::shared_ptr<bool> dropped_ = std::make_shared<bool>(false);
  std::shared_ptr<std::atomic<bool>> cancelled_ = std::make_shared<std::atomic<bool>>(false);
};

// Each starts one, where there is anything to do it with.
void submit_prefill(Agent& agent);
void submit_decode(Agent& agent);
void submit_score(Agent& agent);

}  // namespace dendrite::fuzz
