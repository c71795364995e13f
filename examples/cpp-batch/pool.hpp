// A thread pool in 60 lines, for `onnxc_exec::parallel_for`. A program that has a pool of its own uses that one.
#ifndef POOL_HPP
#define POOL_HPP

#include "digits_batch.h"
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

class Pool {
public:
  explicit Pool(std::size_t helpers) {
    for (std::size_t k = 0; k < helpers; ++k) threads_.emplace_back([this] { serve(); });
  }
  ~Pool() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread &t : threads_) t.join();
  }
  Pool(const Pool &) = delete;
  Pool &operator=(const Pool &) = delete;

  // For `onnxc_exec`; `user` is the pool. Returns after all tasks have run. One call at a time.
  static void parallel_for(void *user, std::size_t n, onnxc_task_fn fn, void *task_ctx) {
    static_cast<Pool *>(user)->run(n, fn, task_ctx);
  }

  // Tasks run so far.
  std::size_t tasks() const { return tasks_; }

private:
  void run(std::size_t n, onnxc_task_fn fn, void *task_ctx) {
    std::unique_lock<std::mutex> lock(mutex_);
    fn_ = fn;
    task_ctx_ = task_ctx;
    n_ = n;
    next_ = 0;
    busy_ = threads_.size();
    ++generation_;
    tasks_ += n;
    lock.unlock();
    wake_.notify_all();
    work(); // the caller works too
    lock.lock();
    done_.wait(lock, [this] { return busy_ == 0; });
  }
  void serve() {
    std::size_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      lock.unlock();
      work();
      lock.lock();
      if (--busy_ == 0) done_.notify_one();
    }
  }
  void work() {
    for (std::size_t k; (k = next_.fetch_add(1)) < n_;) fn_(task_ctx_, k);
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::atomic<std::size_t> next_{0};
  std::size_t n_ = 0, busy_ = 0, generation_ = 0, tasks_ = 0;
  bool stop_ = false;
  onnxc_task_fn fn_ = nullptr;
  void *task_ctx_ = nullptr;
};

#endif
