// RDMA writes with immediate over one RC queue pair, directly with libibverbs. The program shows the behavior of the
// lab's device, and the effect of a fault on an application, without any other library.
//   verbs_writer serve                                           posts receives, checks every arrival.
//   verbs_writer write HOST BYTES SECONDS TIMEOUT RETRIES        TIMEOUT and RETRIES as in ibv_modify_qp.
// The TCP connection beside it carries one struct Peer each way, then one byte each way per phase.
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

constexpr std::uint16_t kTcpPort = 18999;
constexpr std::uint8_t kDevicePort = 1;
constexpr std::size_t kBufferBytes = 4 << 20;
constexpr int kReceives = 64;  // more than kDepth: an arrival always finds one
constexpr int kDepth = 4;
constexpr int kTcpTimeoutSeconds = 1;  // less than a cut lasts
constexpr double kSilenceSeconds = 30;

struct Peer {
  ibv_gid gid;
  std::uint32_t queue_pair, remote_key;
  std::uint64_t address;
};

void check_ok(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(9);
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Device {
  ibv_context* context = nullptr;
  ibv_cq* completions = nullptr;
  ibv_qp* queue_pair = nullptr;
  ibv_mr* region = nullptr;
  std::vector<unsigned char> buffer = std::vector<unsigned char>(kBufferBytes);
  int gid_index = 0;
  Peer self = {};
};

// The IPv4 one where there is one, since its route needs no neighbor discovery after a cut.
int best_gid(ibv_context* context) {
  ibv_gid gid = {};
  for (int index = 0; ibv_query_gid(context, kDevicePort, index, &gid) == 0; ++index) {
    if (IN6_IS_ADDR_V4MAPPED(reinterpret_cast<const in6_addr*>(gid.raw))) return index;
  }
  return 0;
}

void make_queue_pair(Device& device, ibv_pd* domain) {
  ibv_qp_init_attr wanted = {};
  wanted.send_cq = wanted.recv_cq = device.completions;
  wanted.qp_type = IBV_QPT_RC;
  wanted.cap = {kDepth * 2, kReceives, 1, 1, 0};
  device.queue_pair = ibv_create_qp(domain, &wanted);
  check_ok(device.queue_pair != nullptr, "ibv_create_qp");
}

void open_device(Device& device) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  check_ok(list != nullptr && count > 0, "no RDMA device");
  device.context = ibv_open_device(list[0]);
  check_ok(device.context != nullptr, "ibv_open_device");
  ibv_free_device_list(list);
  ibv_pd* domain = ibv_alloc_pd(device.context);
  check_ok(domain != nullptr, "ibv_alloc_pd");
  device.region =
      ibv_reg_mr(domain, device.buffer.data(), kBufferBytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  check_ok(device.region != nullptr, "ibv_reg_mr (ulimit -l?)");
  device.completions = ibv_create_cq(device.context, 256, nullptr, nullptr, 0);
  check_ok(device.completions != nullptr, "ibv_create_cq");
  make_queue_pair(device, domain);
  device.gid_index = best_gid(device.context);
  check_ok(ibv_query_gid(device.context, kDevicePort, device.gid_index, &device.self.gid) == 0, "ibv_query_gid");
  device.self.queue_pair = device.queue_pair->qp_num;
  device.self.remote_key = device.region->rkey;
  device.self.address = reinterpret_cast<std::uintptr_t>(device.buffer.data());
}

void post_receive(Device& device) {
  ibv_recv_wr request = {}, *bad = nullptr;
  check_ok(ibv_post_recv(device.queue_pair, &request, &bad) == 0, "ibv_post_recv");
}

void connect_queue_pair(Device& device, const Peer& peer, int timeout, int retries) {
  ibv_qp_attr to = {};
  to.qp_state = IBV_QPS_INIT;
  to.port_num = kDevicePort;
  to.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
  check_ok(
      ibv_modify_qp(device.queue_pair, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
      "to INIT");
  ibv_port_attr port = {};
  check_ok(ibv_query_port(device.context, kDevicePort, &port) == 0, "ibv_query_port");
  to = {};
  to.qp_state = IBV_QPS_RTR;
  to.path_mtu = port.active_mtu;
  to.dest_qp_num = peer.queue_pair;
  to.min_rnr_timer = 12;
  to.ah_attr.is_global = 1;
  to.ah_attr.grh.hop_limit = 64;
  to.ah_attr.grh.dgid = peer.gid;
  to.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(device.gid_index);
  to.ah_attr.port_num = kDevicePort;
  check_ok(ibv_modify_qp(device.queue_pair, &to,
                         IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                             IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0,
           "to RTR");
  to = {};
  to.qp_state = IBV_QPS_RTS;
  to.timeout = static_cast<std::uint8_t>(timeout);
  to.retry_cnt = static_cast<std::uint8_t>(retries);
  to.rnr_retry = 7;
  check_ok(ibv_modify_qp(device.queue_pair, &to,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                             IBV_QP_MAX_QP_RD_ATOMIC) == 0,
           "to RTS");
}

int accept_one() {
  const int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in any = {};
  any.sin_family = AF_INET;
  any.sin_port = htons(kTcpPort);
  check_ok(bind(listener, reinterpret_cast<sockaddr*>(&any), sizeof any) == 0, "bind");
  check_ok(listen(listener, 1) == 0, "listen");
  const int accepted = accept(listener, nullptr, nullptr);
  check_ok(accepted >= 0, "accept");
  close(listener);
  return accepted;
}

int connect_to(const char* host) {
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(kTcpPort);
  check_ok(inet_pton(AF_INET, host, &to.sin_addr) == 1, "not an IPv4 address");
  for (int attempt = 0; attempt < 50; ++attempt) {
    const int made = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(made, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return made;
    close(made);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  check_ok(false, "connect");
  return -1;
}

template <typename T>
T swap(int tcp, const T& ours) {
  T theirs = {};
  check_ok(write(tcp, &ours, sizeof ours) == sizeof ours, "write");
  check_ok(recv(tcp, &theirs, sizeof theirs, MSG_WAITALL) == sizeof theirs, "the peer is gone");
  return theirs;
}

int report(const ibv_wc& wc, std::uint64_t done, double stalled_seconds) {
  std::printf("completion error status=%d (%s) after %llu good ones; stalled %.3f s\n", wc.status,
              ibv_wc_status_str(wc.status), static_cast<unsigned long long>(done), stalled_seconds);
  return 1;
}

// Each write carries its number as immediate and as its first word: data that is behind its notice would show.
int serve(Device& device, int tcp) {
  std::uint32_t arrived = 0;
  for (;;) {
    ibv_wc wc = {};
    const int found = ibv_poll_cq(device.completions, 1, &wc);
    if (found > 0 && wc.status != IBV_WC_SUCCESS) return report(wc, arrived, 0);
    if (found > 0) {
      std::uint32_t first_word = 0;
      std::memcpy(&first_word, device.buffer.data() + (arrived % kDepth) * (kBufferBytes / kDepth), sizeof first_word);
      // A later write may already be here: its completion does not show what this side has read.
      if (ntohl(wc.imm_data) != arrived || first_word < arrived || first_word % kDepth != arrived % kDepth) {
        std::printf("arrival %u: immediate %u, data %u\n", arrived, ntohl(wc.imm_data), first_word);
        return 1;
      }
      ++arrived;
      post_receive(device);
      continue;
    }
    char end = 0;
    if (recv(tcp, &end, 1, MSG_DONTWAIT) >= 0) {
      check_ok(write(tcp, &end, 1) >= 0 || errno == EPIPE, "write");
      break;
    }
    std::this_thread::yield();
  }
  std::printf("arrived=%u, all in order, data never behind its notice\n", arrived);
  return 0;
}

void post_write(Device& device, const Peer& peer, std::size_t bytes, std::uint32_t number) {
  const std::size_t offset = (number % kDepth) * (kBufferBytes / kDepth);
  std::memcpy(device.buffer.data() + offset, &number, sizeof number);
  ibv_sge local = {device.self.address + offset, static_cast<std::uint32_t>(bytes), device.region->lkey};
  ibv_send_wr request = {}, *bad = nullptr;
  request.sg_list = &local;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  request.send_flags = IBV_SEND_SIGNALED;
  request.imm_data = htonl(number);
  request.wr.rdma = {peer.address + offset, peer.remote_key};
  check_ok(ibv_post_send(device.queue_pair, &request, &bad) == 0, "ibv_post_send");
}

// The state of the TCP connection after a fault of RoCE alone.
const char* state_of(int tcp) {
  const timeval timeout = {kTcpTimeoutSeconds, 0};
  setsockopt(tcp, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  char byte = 0;
  return write(tcp, &byte, 1) == 1 && recv(tcp, &byte, 1, 0) == 1 ? "alive" : "silent";
}

int write_for(Device& device, const Peer& peer, std::size_t bytes, double seconds) {
  std::uint32_t posted = 0, done = 0;
  const double start = now_seconds();
  double last = start;
  while (now_seconds() - start < seconds || done < posted) {
    if (posted - done < kDepth && now_seconds() - start < seconds) post_write(device, peer, bytes, posted++);
    ibv_wc wc = {};
    if (ibv_poll_cq(device.completions, 1, &wc) > 0) {
      if (wc.status != IBV_WC_SUCCESS) return report(wc, done, now_seconds() - last);
      last = now_seconds();
      if (++done == 1) std::printf("first write done\n");
    } else if (now_seconds() - last > kSilenceSeconds) {
      std::printf("no completion for %.0f s after %u\n", kSilenceSeconds, done);
      return 2;
    }
  }
  const double took = now_seconds() - start;
  std::printf("written=%u of %zu B, %.1f us each, %.2f MB/s\n", done, bytes, took / done * 1e6,
              done * bytes / took / 1e6);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool serving = argc == 2 && std::strcmp(argv[1], "serve") == 0;
  const bool writing = argc == 7 && std::strcmp(argv[1], "write") == 0;
  const long bytes = writing ? std::atol(argv[3]) : 0;
  if (!serving && (!writing || bytes < 4 || bytes > static_cast<long>(kBufferBytes / kDepth))) {
    std::fprintf(stderr, "usage: verbs_writer serve | write HOST BYTES (4 to %zu) SECONDS TIMEOUT RETRIES\n",
                 kBufferBytes / kDepth);
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Device device;
  open_device(device);
  const int tcp = serving ? accept_one() : connect_to(argv[2]);
  const Peer peer = swap(tcp, device.self);
  connect_queue_pair(device, peer, writing ? std::atoi(argv[5]) : 18, writing ? std::atoi(argv[6]) : 7);
  for (int i = 0; i < kReceives; ++i) post_receive(device);
  swap(tcp, char{1});
  if (serving) return serve(device, tcp);
  const int status = write_for(device, peer, static_cast<std::size_t>(bytes), std::atof(argv[4]));
  std::printf("the TCP connection is %s\n", state_of(tcp));
  return status;
}
