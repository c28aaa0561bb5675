#include "ps/protocol/security.h"

#include <grpcpp/security/auth_metadata_processor.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/strip.h"
#include "base/file_descriptor.h"
#include "base/net_address.h"
#include "base/read_file.h"
#include "base/status.h"
#include "fmt/format.h"
#include "gradrail/cluster.h"
#include "ps/protocol/mac.h"

namespace gradrail::ps {
namespace {

constexpr size_t kMaxPemBytes = size_t{16} << 20;  // the certificate authorities of an operating system take 0.2 MB

/// gRPC 1.51 has no option for the lowest TLS version. It reads the ciphers of versions up to 1.2 from this variable.
/// The cipher below needs a pre-shared key, so that no 1.2 handshake succeeds. TLS 1.3 has its own ciphers.
void allow_only_tls_1_3() {
  // setenv() is not safe against other threads that read the environment: it runs once, before gRPC's first handshake.
  static std::once_flag once;
  std::call_once(once, [] { setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", 1); });
}

struct Pem {
  std::string certificate, key, authority;
};

std::unique_ptr<BIO, int (*)(BIO*)> memory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

using Certificate = std::unique_ptr<X509, void (*)(X509*)>;

/// The first certificate of a file. gRPC reports a broken file only as a failure to listen or to connect.
absl::StatusOr<Certificate> read_certificate(const std::string& pem, std::string_view flag, const std::string& path) {
  Certificate certificate(PEM_read_bio_X509(memory(pem).get(), nullptr, nullptr, nullptr), X509_free);
  if (certificate == nullptr) return absl::InvalidArgumentError(fmt::format("{} {}: holds no certificate", flag, path));
  return certificate;
}

absl::Status check_pair(const Security& security, const Pem& pem) {
  GRADRAIL_ASSIGN_OR_RETURN(const Certificate certificate,
                            read_certificate(pem.certificate, "--cert-file", security.cert_file));
  // The callback gives no password. Without it OpenSSL prompts on the terminal, and the task hangs.
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> key(
      PEM_read_bio_PrivateKey(
          memory(pem.key).get(), nullptr, [](char*, int, int, void*) { return 0; }, nullptr),
      EVP_PKEY_free);
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        fmt::format("--key-file {}: holds no private key that can be read without a password", security.key_file));
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(
        fmt::format("--key-file {}: is not the key of --cert-file {}", security.key_file, security.cert_file));
  }
  return absl::OkStatus();
}

absl::StatusOr<Pem> read_pem(const Security& security) {
  Pem pem;
  struct Part {
    const std::string& path;
    const char* flag;
    std::string& text;
  };
  // The files are checked here, since gRPC fails later and without a cause.
  for (const Part& part :
       {Part{security.cert_file, "--cert-file", pem.certificate}, Part{security.key_file, "--key-file", pem.key},
        Part{security.trusted_ca_file, "--trusted-ca-file", pem.authority}}) {
    if (part.path.empty()) continue;
    absl::StatusOr<std::string> text = read_file(part.path, kMaxPemBytes, FileKind::any);
    if (!text.ok())
      return absl::Status(text.status().code(), fmt::format("{} {}", part.flag, message_of(text.status())));
    // gRPC takes any text and fails only at the first handshake, without a reason.
    if (text->find("-----BEGIN ") == std::string::npos)
      return absl::InvalidArgumentError(fmt::format("{} {}: is no PEM file", part.flag, part.path));
    part.text = *std::move(text);
  }
  if (!pem.authority.empty())
    GRADRAIL_RETURN_IF_ERROR(read_certificate(pem.authority, "--trusted-ca-file", security.trusted_ca_file).status());
  // A key of another certificate would fail each handshake on the other side only.
  if (!pem.certificate.empty()) GRADRAIL_RETURN_IF_ERROR(check_pair(security, pem));
  return pem;
}

// The proof at the gate is plain text, before TLS: an attacker on the way could use it for its own connection. Inside
// TLS each call therefore carries a MAC of the secret. The client has verified the certificate of the server before.

constexpr char kSecretMetadata[] = "gradrail-secret-bin";

std::string secret_inside_tls(const std::string& secret) { return mac_of(secret, {"tls"}); }

class SecretOfCalls final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit SecretOfCalls(const std::string& secret) : mac_(secret_inside_tls(secret)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<grpc::string, grpc::string>* metadata) override {
    metadata->emplace(kSecretMetadata, mac_);
    return grpc::Status::OK;
  }

 private:
  const std::string mac_;
};

class SecretCheckOfCalls final : public grpc::AuthMetadataProcessor {
 public:
  explicit SecretCheckOfCalls(const std::string& secret) : mac_(secret_inside_tls(secret)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& given, grpc::AuthContext*, OutputMetadata* consumed,
                       OutputMetadata*) override {
    const auto found = given.find(kSecretMetadata);
    if (found == given.end() || !same_bytes({found->second.data(), found->second.size()}, mac_))
      return {grpc::StatusCode::UNAUTHENTICATED, "the call does not have this job's secret"};
    consumed->emplace(kSecretMetadata, mac_);
    return grpc::Status::OK;
  }

 private:
  const std::string mac_;
};

/// Every address of a name is local: a name may resolve to a local and to a public address.
bool are_loopback(const std::vector<NetAddress>& addresses) {
  return std::all_of(addresses.begin(), addresses.end(),
                     [](const NetAddress& address) { return address.is_loopback(); });
}

}  // namespace

absl::Status check_exposure(const Security& security, const std::string& address) {
  const absl::StatusOr<HostPort> parsed = parse_host_port(address);
  // A broken address fails at its use.
  return parsed.ok() ? check_exposure_of_host(security, parsed->host, address) : absl::OkStatus();
}

absl::Status check_exposure_of_host(const Security& security, const std::string& host, const std::string& address) {
  // The flag only permits the missing protection; it does not switch off one that is set up.
  if (security.insecure || security.tls() || !security.secret.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<NetAddress>> found = resolve(host, 0);
  if (!found.ok()) {
    return absl::FailedPreconditionError(fmt::format(
        "{}: its host name cannot be resolved: {} (is it spelled correctly? A name that other hosts resolve "
        "needs --secret-file FILE, TLS or --insecure, too)",
        address, message_of(found.status())));
  }
  if (are_loopback(*found)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("{} is reachable from other hosts without authentication: give all tasks --secret-file FILE or TLS "
                  "(--cert-file, --key-file, --trusted-ca-file), or --insecure in a trusted network",
                  address));
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const Security& security) {
  GRADRAIL_RETURN_IF_ERROR(validate(security));
  if (!security.tls()) return grpc::InsecureServerCredentials();
  if (security.cert_file.empty())
    return absl::InvalidArgumentError("--trusted-ca-file: a parameter server needs --cert-file and --key-file, too");
  GRADRAIL_ASSIGN_OR_RETURN(const Pem pem, read_pem(security));
  allow_only_tls_1_3();
  grpc::SslServerCredentialsOptions options(security.client_cert_auth
                                                ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  options.pem_key_cert_pairs.push_back({pem.key, pem.certificate});
  // The authority is set also without --client-cert-auth: gRPC then ignores it.
  options.pem_root_certs = pem.authority;
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::SslServerCredentials(options);
  if (!security.secret.empty())
    credentials->SetAuthMetadataProcessor(std::make_shared<SecretCheckOfCalls>(security.secret));
  return credentials;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> channel_credentials(const Security& security) {
  GRADRAIL_RETURN_IF_ERROR(validate(security));
  if (!security.tls()) return grpc::InsecureChannelCredentials();
  GRADRAIL_ASSIGN_OR_RETURN(const Pem pem, read_pem(security));
  allow_only_tls_1_3();
  std::shared_ptr<grpc::ChannelCredentials> credentials = grpc::SslCredentials(
      {.pem_root_certs = pem.authority, .pem_private_key = pem.key, .pem_cert_chain = pem.certificate});
  if (security.secret.empty()) return credentials;
  return grpc::CompositeChannelCredentials(
      credentials, grpc::MetadataCredentialsFromPlugin(std::make_unique<SecretOfCalls>(security.secret)));
}

}  // namespace gradrail::ps

namespace gradrail {
namespace {

constexpr size_t kLeastSecretBytes = 16;   // 128 bits, if each character is random
constexpr size_t kMostSecretBytes = 4096;  // a larger file is a mistake, such as a certificate

}  // namespace

absl::Status validate(const Security& security) {
  if (security.cert_file.empty() != security.key_file.empty())
    return absl::InvalidArgumentError("--cert-file and --key-file belong together: give both");
  // A server without its own certificate speaks no TLS and can ask for none.
  if (security.client_cert_auth && (security.trusted_ca_file.empty() || security.cert_file.empty())) {
    return absl::InvalidArgumentError(
        "--client-cert-auth: needs --trusted-ca-file for the certificates of workers, and --cert-file and --key-file "
        "of the ps");
  }
  return absl::OkStatus();
}

absl::Status check_encryption(const Security& security) {
  if (!security.encrypt_data || security.tls() || !security.secret.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "--encrypt-data: needs --secret-file FILE or TLS (--cert-file, --key-file, --trusted-ca-file); otherwise an "
      "attacker on the network can exchange the keys");
}

absl::StatusOr<std::string> read_secret_file(const std::string& path) {
  const auto refused = [](const absl::Status& why) {
    return absl::Status(why.code(), fmt::format("--secret-file {}", message_of(why)));
  };
  const absl::StatusOr<FileDescriptor> file = open_input(path, FileKind::any);
  if (!file.ok()) return refused(file.status());
  // fstat() and not stat(): the path may name another file by now.
  struct stat about {};
  if (fstat(file->get(), &about) != 0) return absl::ErrnoToStatus(errno, fmt::format("--secret-file {}", path));
  // systemd and Kubernetes give a group of their own access to a file that root owns.
  const mode_t others = about.st_uid == 0 && geteuid() != 0 ? 037 : 077;
  if ((about.st_mode & others) != 0) {
    return absl::FailedPreconditionError(fmt::format(
        "--secret-file {}: other users have access to it (mode {:04o}): run chmod 600", path, about.st_mode & 07777));
  }
  const absl::StatusOr<std::string> text = read_input(*file, path, kMostSecretBytes + 1);
  if (!text.ok()) return refused(text.status());
  // Editors and echo add a line end, which is not part of the secret.
  const std::string secret(absl::StripTrailingAsciiWhitespace(*text));
  const bool is_longer = secret.size() > kMostSecretBytes;  // no more of it is read
  if (secret.size() < kLeastSecretBytes || is_longer) {
    return absl::FailedPreconditionError(
        fmt::format("--secret-file {}: has {} characters, must have {} to {} (openssl rand -hex 32 makes good ones)",
                    path, is_longer ? fmt::format("more than {}", kMostSecretBytes) : std::to_string(secret.size()),
                    kLeastSecretBytes, kMostSecretBytes));
  }
  return secret;
}

}  // namespace gradrail
