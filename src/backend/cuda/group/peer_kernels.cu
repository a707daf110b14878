#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/group/peer_kernels.h"

namespace dendrite::cuda {
namespace {

constexpr unsigned kThreads = 256;

/// What this thread saw written before, earlier kernels' too, is there for who sees the flag.
__device__ void raise(std::uint32_t* flag, std::uint32_t count) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(count) : "memory");
}

/// Until it was raised so often; it may have been once more.
__device__ void await(const std::uint32_t* flag, std::uint32_t count) {
  std::uint32_t raised;
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(raised) : "l"(flag) : "memory");
  } while (static_cast<std::int32_t>(raised - count) < 0);
}

__device__ void send(PeerValues* to, float2 values, std::uint32_t sum) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(to),
               "r"(__float_as_uint(values.x)), "r"(sum), "r"(__float_as_uint(values.y))
               : "memory");
}

__device__ float2 receive(const PeerValues* from, std::uint32_t sum) {
  PeerValues at;
  do {
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(at.first), "=r"(at.first_sum), "=r"(at.second), "=r"(at.second_sum)
                 : "l"(from)
                 : "memory");
  } while (at.first_sum != sum || at.second_sum != sum);
  return make_float2(__uint_as_float(at.first), __uint_as_float(at.second));
}

/// A thread's two values, by mailboxes. Two turns are enough: who writes the next but one has seen
/// that its peers were through with the last. Sums are counted here, as a recording repeats its
/// arguments; a block counts its own, as sums differ in size.
__global__ void __launch_bounds__(kThreads) peer_sum_kernel(const PeerSum sum) {
  wait_for_earlier();
  const Mailbox& own = sum.boxes[sum.device];
  const std::uint32_t number = own.sums[blockIdx.x] + 1;
  const std::int64_t i = std::int64_t{blockIdx.x} * kPeerValues + 2 * threadIdx.x;
  const bool has = i < sum.out.rows * sum.out.cols;
  const std::int64_t turn = (number & 1) * sum.ranks;
  const auto place = [&](const Mailbox& box, std::int32_t rank) {
    return box.values + ((turn + rank) * sum.box_values + i) / 2;
  };
  for (std::int32_t rank = 0; has && rank < sum.ranks; ++rank) {
    if (sum.parts[rank] == nullptr) continue;
    const float2 values = *reinterpret_cast<const float2*>(sum.parts[rank] + i);
    for (std::int32_t device = 0; device < sum.devices; ++device) {
      if (device != sum.device) send(place(sum.boxes[device], rank), values, number);
    }
  }
  let_next_begin();
  if (has) {
    const std::int64_t row = i / sum.out.cols;
    float2& to =
        *reinterpret_cast<float2*>(sum.out.data + row * sum.out.stride + i - row * sum.out.cols);
    float2 total = sum.add ? to : float2{};
    for (std::int32_t rank = 0; rank < sum.ranks; ++rank) {
      const float2 part = sum.parts[rank] != nullptr
                              ? *reinterpret_cast<const float2*>(sum.parts[rank] + i)
                              : receive(place(own, rank), number);
      const bool begins = rank == 0 && !sum.add;
      total.x = begins ? part.x : total.x + part.x;
      total.y = begins ? part.y : total.y + part.y;
    }
    to = total;
  }
  __syncthreads();
  if (threadIdx.x == 0) own.sums[blockIdx.x] = number;
}

/// The same where all parts can be read.
__global__ void __launch_bounds__(kThreads) direct_sum_kernel(const PeerSum sum) {
  wait_for_earlier();
  let_next_begin();
  const std::int64_t end =
      min((std::int64_t{blockIdx.x} + 1) * kPeerValues, sum.out.rows * sum.out.cols);
  for (std::int64_t i = std::int64_t{blockIdx.x} * kPeerValues + threadIdx.x; i < end;
       i += kThreads) {
    float& to = sum.out.data[i / sum.out.cols * sum.out.stride + i % sum.out.cols];
    float total = sum.add ? to : 0;
    for (std::int32_t rank = 0; rank < sum.ranks; ++rank) {
      const float part = sum.parts[rank][i];
      total = rank == 0 && !sum.add ? part : total + part;
    }
    to = total;
  }
}

__global__ void tell_kernel(std::uint32_t* flag, std::uint32_t* count) {
  wait_for_earlier();
  let_next_begin();
  const std::uint32_t next = *count + 1;
  *count = next;
  raise(flag, next);
}

__global__ void await_kernel(const std::uint32_t* flags, std::uint32_t* count) {
  wait_for_earlier();
  let_next_begin();
  const std::uint32_t next = *count + 1;
  await(flags + threadIdx.x, next);
  __syncthreads();
  if (threadIdx.x == 0) *count = next;
}

}  // namespace

void launch_peer_sum(const PeerSum& sum, cudaStream_t stream) {
  const auto blocks =
      static_cast<unsigned>((sum.out.rows * sum.out.cols + kPeerValues - 1) / kPeerValues);
  launch_early(sum.devices > 0 ? peer_sum_kernel : direct_sum_kernel, blocks, kThreads, 0, stream,
               sum);
}

void launch_tell(std::uint32_t* flag, std::uint32_t* count, cudaStream_t stream) {
  launch_early(tell_kernel, 1, 1, 0, stream, flag, count);
}

void launch_await(const std::uint32_t* flags, std::uint32_t* count, std::int64_t senders,
                  cudaStream_t stream) {
  launch_early(await_kernel, 1, static_cast<unsigned>(senders), 0, stream, flags, count);
}

}  // namespace dendrite::cuda
