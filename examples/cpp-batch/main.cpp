// Reads batches of handwritten digits, of any size, on the program's own threads. C++11.
#include "digits_batch.h"
#include "pool.hpp"
#include "samples.hpp"
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

namespace {

const std::size_t kPixels = 64, kClasses = 10, kSamples = sizeof samples / sizeof *samples;

// Aligned memory that grows to the largest batch, so that later calls allocate nothing. One per thread that runs models.
class Workspace {
public:
  void *reserve(std::uint64_t bytes) {
    const std::size_t need = static_cast<std::size_t>(bytes) + DIGITS_BATCH_WORKSPACE_ALIGN;
    if (memory_.size() < need) memory_.resize(need);
    const std::uintptr_t past = reinterpret_cast<std::uintptr_t>(memory_.data()) % DIGITS_BATCH_WORKSPACE_ALIGN;
    return memory_.data() + (past ? DIGITS_BATCH_WORKSPACE_ALIGN - past : 0);
  }

private:
  std::vector<unsigned char> memory_;
};

struct Answer {
  std::vector<float> probabilities; // [n, 10]
  std::vector<std::int64_t> digits; // [n]
};

// Runs the model on n images; exec may be null.
std::int32_t read(std::size_t n, const std::vector<float> &images, Workspace &workspace, const onnxc_exec *exec, Answer &answer) {
  const std::int64_t batch = static_cast<std::int64_t>(n);
  std::uint64_t bytes = 0;
  const std::int32_t status = digits_batch_workspace_size(batch, &bytes);
  if (status != ONNXC_OK) return status;
  answer.probabilities.resize(n * kClasses);
  answer.digits.resize(n);
  return digits_batch_infer_exec(batch, images.data(), answer.probabilities.data(), answer.digits.data(), workspace.reserve(bytes), exec);
}

} // namespace

int main() {
  const std::size_t sizes[] = {1, 2, 7, 32, 96, 1000, 5};
  // This thread works too. hardware_concurrency() is 0 where it is not known.
  Pool pool(std::max(2u, std::thread::hardware_concurrency()) - 1);
  onnxc_exec exec = onnxc_exec();
  exec.struct_size = sizeof exec;
  exec.user = &pool;
  exec.parallel_for = Pool::parallel_for;

  Workspace workspace;
  bool ok = true;
  for (std::size_t n : sizes) {
    std::vector<float> images(n * kPixels);
    for (std::size_t k = 0; k < n; ++k)
      for (std::size_t i = 0; i < kPixels; ++i) images[k * kPixels + i] = static_cast<float>(samples[k % kSamples].pixels[i]);

    Answer serial, parallel;
    std::int32_t status = read(n, images, workspace, nullptr, serial);
    const std::size_t before = pool.tasks();
    if (status == ONNXC_OK) status = read(n, images, workspace, &exec, parallel);
    if (status != ONNXC_OK) {
      std::fprintf(stderr, "batch of %zu: %s\n", n, onnxc_status_string(status));
      return 1;
    }

    std::size_t right = 0;
    for (std::size_t k = 0; k < n; ++k) right += parallel.digits[k] == samples[k % kSamples].digit;
    const std::size_t first = static_cast<std::size_t>(parallel.digits[0]);
    // Threads change who computes, never what: the answers are the same to the last bit.
    const bool same = serial.digits == parallel.digits &&
                      std::memcmp(serial.probabilities.data(), parallel.probabilities.data(), n * kClasses * sizeof(float)) == 0;
    std::printf("batch of %4zu: %4zu right, the first is a %zu (%.1f %%), %zu tasks%s\n", n, right, first,
                100.0 * static_cast<double>(first < kClasses ? parallel.probabilities[first] : 0), pool.tasks() - before,
                same ? "" : "  DIFFERS FROM ONE THREAD");
    ok = ok && right == n && same;
  }
  std::puts(ok ? "all right" : "WRONG");
  return ok ? 0 : 1;
}
