# Every library that we use, as an imported target sluice::<name>, so that a folder's CMakeLists.txt names only what it links.
# docs/LIBRARIES.md says why each was chosen. tools/install-deps.sh installs all of them from the distribution.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET GLOBAL libprotobuf-c)
pkg_check_modules(UCX REQUIRED IMPORTED_TARGET GLOBAL ucx)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET GLOBAL jansson)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET GLOBAL yaml-0.1)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET GLOBAL libpcre2-8)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET GLOBAL libxxhash)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET GLOBAL libutf8proc)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET GLOBAL sqlite3)
pkg_check_modules(OPENSSL REQUIRED IMPORTED_TARGET GLOBAL libssl libcrypto)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET GLOBAL libmicrohttpd)
pkg_check_modules(GNUTLS REQUIRED IMPORTED_TARGET GLOBAL gnutls)
pkg_check_modules(LIBJWT REQUIRED IMPORTED_TARGET GLOBAL libjwt)
pkg_check_modules(CURL REQUIRED IMPORTED_TARGET GLOBAL libcurl)
pkg_check_modules(ZIP REQUIRED IMPORTED_TARGET GLOBAL libzip)
pkg_check_modules(ZLIB REQUIRED IMPORTED_TARGET GLOBAL zlib)
pkg_check_modules(EDIT REQUIRED IMPORTED_TARGET GLOBAL libedit)
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET GLOBAL cmocka)

# gRPC's own CMake package refers to C++ plug-ins that the C library's package does not contain. pkg-config names all of Abseil, which we
# do not call, and takes half a second for each of twenty questions.
find_library(GRPC_LIBRARY grpc REQUIRED)
find_library(GPR_LIBRARY gpr REQUIRED)
find_path(GRPC_INCLUDE grpc/grpc.h REQUIRED)
add_library(sluice::gpr UNKNOWN IMPORTED)
set_target_properties(sluice::gpr PROPERTIES IMPORTED_LOCATION ${GPR_LIBRARY})
add_library(sluice::grpc UNKNOWN IMPORTED)
set_target_properties(sluice::grpc PROPERTIES IMPORTED_LOCATION ${GRPC_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${GRPC_INCLUDE}
  INTERFACE_LINK_LIBRARIES sluice::gpr)

add_library(sluice::protobuf_c ALIAS PkgConfig::PROTOBUF_C)
add_library(sluice::ucx ALIAS PkgConfig::UCX)
add_library(sluice::jansson ALIAS PkgConfig::JANSSON)
add_library(sluice::yaml ALIAS PkgConfig::YAML)
add_library(sluice::pcre2 ALIAS PkgConfig::PCRE2)
add_library(sluice::xxhash ALIAS PkgConfig::XXHASH)
add_library(sluice::utf8proc ALIAS PkgConfig::UTF8PROC)
add_library(sluice::sqlite ALIAS PkgConfig::SQLITE)
add_library(sluice::openssl ALIAS PkgConfig::OPENSSL)
add_library(sluice::microhttpd ALIAS PkgConfig::MICROHTTPD)
add_library(sluice::gnutls ALIAS PkgConfig::GNUTLS)
add_library(sluice::jwt ALIAS PkgConfig::LIBJWT)
add_library(sluice::curl ALIAS PkgConfig::CURL)
add_library(sluice::zip ALIAS PkgConfig::ZIP)
add_library(sluice::zlib ALIAS PkgConfig::ZLIB)
add_library(sluice::edit ALIAS PkgConfig::EDIT)
add_library(sluice::cmocka ALIAS PkgConfig::CMOCKA)

# It has no file for pkg-config. Where it is not (other processors), OpenSSL's own AES serves.
find_library(IPSEC_MB_LIBRARY IPSec_MB)
find_path(IPSEC_MB_INCLUDE intel-ipsec-mb.h)
if(IPSEC_MB_LIBRARY AND IPSEC_MB_INCLUDE)
  add_library(sluice::ipsec_mb UNKNOWN IMPORTED)
  set_target_properties(sluice::ipsec_mb PROPERTIES IMPORTED_LOCATION ${IPSEC_MB_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${IPSEC_MB_INCLUDE})
endif()

find_program(PROTOC_C protoc-c REQUIRED)
find_program(PROTOC protoc REQUIRED)
# The distribution's own, which has python3-protobuf, before another python3 of the machine.
find_program(PYTHON python3 HINTS /usr/bin REQUIRED)
