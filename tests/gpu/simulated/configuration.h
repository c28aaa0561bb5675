#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace gradrail::simulated {

/// Parses GRADRAIL_SIMULATED_GPU, such as "devices=2,memory=64M,lose=0@100". An unknown word stops the process: a test
/// with a misspelt fault must not pass.
struct Configuration {
  int devices = 1;
  size_t memory_bytes = size_t{4} << 30;  ///< memory: of each device
  size_t context_bytes = 0;               ///< context: what an open context takes of it
  int driver_version = 13000;             ///< driver
  int init_result = 0;                    ///< init: what cuInit answers
  int start_ms = 0;                       ///< start_ms: the time of cuInit, in milliseconds
  bool computes = true;                   ///< computes=0: kernels do nothing; copies take place
  int delay_us = 0;                       ///< delay: before each operation of a stream, so that missing waits show
  int compute_major = 9;                  ///< compute: sm_90 is 9
  bool pinned_addresses = true;           ///< pinned_addresses=0: kernels do not know the host's
  int pin_result = 0;                     ///< pin: what pinning host memory answers
  int ipc_result = 0;                     ///< ipc: what mapping another process' memory answers
  int capture_result = 0;                 ///< capture: what a launch answers on a stream that is captured
  int capture_write_result = 0;           ///< capture_write: … a write of a number by such a stream
  int instantiate_result = 0;             ///< instantiate: what preparing a graph answers
  bool dma_buf = true;                    ///< dma_buf=0: without
  bool stream_writes = true;              ///< stream_writes=0: streams write no numbers
  int ordering = 100;     ///< ordering: of what NICs write, as the attribute. Writes that are not ordered
                          ///< for kernels must be flushed, or the next launch fails
  bool coherent = false;  ///< coherent=1: processor and GPU share page tables
  bool orders_writes() const { return ordering >= 200 || (ordering >= 100 && compute_major >= 9 && !coherent); }
  int open_result = 0;                 ///< open: what opening a context answers
  bool flushes_writes = true;          ///< flush=0: and cannot be
  std::string image;                   ///< image=refuse: modules are refused, as by a device without fitting code;
                                       ///< image=nojit: as by a driver that lacks its compiler
  std::map<int, uint64_t> attributes;  ///< attribute=A@V: attribute A of each device has the value V
  std::map<int, uint64_t> lose;        ///< lose=D@N: device D fails at its launch N, counted from 1
  std::map<int, uint64_t> hang;        ///< hang=D@N: … never comes to an end
  std::map<int, uint64_t> stall;       ///< stall=D@N: … ends when release_hang() is called; other streams continue
  std::map<int, uint64_t> fault;       ///< fault=D@N: … uses an illegal address

  static Configuration parse(const std::string& words);
  static Configuration from_environment();
};

}  // namespace gradrail::simulated
