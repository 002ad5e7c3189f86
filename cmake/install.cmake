# The installed files of `make install`, `cmake --install` and `make deb`. All of them are below the prefix, and each finds the others from
# its own place: a folder that is moved as a whole still works. Only the systemd units name the prefix of the installation.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(programs sluice sluice-coordinator sluice-gateway sluice-prefill sluice-decode sluice-kvstore)
install(TARGETS ${programs} RUNTIME)
install(PROGRAMS ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/sluice-test-ca TYPE BIN)
# Programs open these for --device emulated and cuda (engine/runtime/plugin.c).
set(plugins sluice_emulated)
if(SLUICE_CUDA)
  list(APPEND plugins sluice_cuda)
endif()
install(TARGETS ${plugins} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/sluice)
set_target_properties(${programs} PROPERTIES INSTALL_RPATH $ORIGIN/../${CMAKE_INSTALL_LIBDIR}/sluice)

# The C client, for programs of others.
install(TARGETS libsluice EXPORT SluiceTargets LIBRARY INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY ${CMAKE_BINARY_DIR}/include/sluice TYPE INCLUDE)
install(FILES ${CMAKE_BINARY_DIR}/proto/generated/proto/sluice/v1/inference.pb-c.h
  ${CMAKE_BINARY_DIR}/proto/generated/proto/sluice/v1/cluster.pb-c.h
  ${CMAKE_BINARY_DIR}/proto/generated/proto/sluice/v1/documents.pb-c.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/sluice/v1)
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/Sluice)
install(EXPORT SluiceTargets NAMESPACE Sluice:: DESTINATION ${package})
configure_package_config_file(cmake/installed/SluiceConfig.cmake.in ${CMAKE_BINARY_DIR}/installed/SluiceConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/installed/SluiceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/installed/SluiceConfig.cmake ${CMAKE_BINARY_DIR}/installed/SluiceConfigVersion.cmake
  DESTINATION ${package})
file(RELATIVE_PATH UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" UP ${UP})
configure_file(cmake/installed/sluice.pc.in ${CMAKE_BINARY_DIR}/installed/sluice.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/installed/sluice.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Documents, the contract for other languages, and a model to try everything with.
install(FILES LICENSE README.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright) # where Debian looks for it
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN *.md PATTERN *.png PATTERN budget.csv)
install(DIRECTORY proto/sluice DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice/proto FILES_MATCHING PATTERN *.proto)
install(DIRECTORY models/demo DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice/models)
# `sluice bench cluster` runs this package; the evaluation is another one.
install(DIRECTORY lab/sluice_eval/sluice_eval lab/sluice_eval/sluice_bench DESTINATION ${CMAKE_INSTALL_DATADIR}/sluice/python
  FILES_MATCHING PATTERN *.py PATTERN papers/* PATTERN __pycache__ EXCLUDE)

# Man pages and completions, of the programs' own option tables.
set(reference ${CMAKE_BINARY_DIR}/reference)
add_custom_command(
  OUTPUT ${reference}/made
  COMMAND ${CMAKE_COMMAND} -E rm -rf ${reference} # of a command that is no more
  COMMAND ${PYTHON} ${CMAKE_SOURCE_DIR}/tools/reference.py ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${reference}
  COMMAND ${CMAKE_COMMAND} -E touch ${reference}/made
  DEPENDS ${programs} ${CMAKE_SOURCE_DIR}/tools/reference.py)
add_custom_target(reference ALL DEPENDS ${reference}/made)
install(DIRECTORY ${reference}/man1 ${reference}/man8 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(DIRECTORY ${reference}/bash/ DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(DIRECTORY ${reference}/fish/ DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

# Everything that is installed, and nothing else: `make install` and `make deb` build this target instead of all targets.
add_custom_target(programs DEPENDS ${programs} ${plugins} libsluice public_headers reference)

# Units, with the folder of the programs in them, and completion for zsh, which distributions look for elsewhere than users do.
install(CODE "set(bin_folder \"${CMAKE_INSTALL_BINDIR}\")\nset(data_folder \"${CMAKE_INSTALL_DATADIR}\")
set(source_folder \"${CMAKE_SOURCE_DIR}\")\nset(build_folder \"${CMAKE_BINARY_DIR}\")")
install(SCRIPT cmake/installed/by_prefix.cmake)

add_custom_target(uninstall
  COMMAND ${PYTHON} ${CMAKE_SOURCE_DIR}/cmake/uninstall.py ${CMAKE_BINARY_DIR}/install_manifest.txt VERBATIM)

# `make deb`: one package with everything.
set(CPACK_GENERATOR DEB)
set(CPACK_SET_DESTDIR ON) # units shall name the prefix, not the folder in which the package is made
set(CPACK_INSTALL_PREFIX /usr)
# Naming the only component gives it an install list of its own: `make uninstall` still removes what `make install` wrote.
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};sluice;Unspecified;/")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME sluice)
set(CPACK_PACKAGE_CONTACT "The Sluice authors <sluice@localhost>")
set(CPACK_PACKAGE_VENDOR "The Sluice authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "serves language models with long prompts from compressed KV caches")
set(CPACK_PACKAGE_DESCRIPTION "A cluster whose prefill workers read long prompts and compress the KV cache, which is shipped to decode
workers, kept by stores and computed on as it is. The tool sluice, the servers, their systemd units, the C client with its headers, and a small model.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON) # and has ldconfig run
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openssl, ca-certificates, python3")
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "ibverbs-providers, etcd-server, libprotobuf-c-dev, pandoc, pkg-config, poppler-utils, python3-matplotlib, w3m")
set(CPACK_OUTPUT_FILE_PREFIX ${CMAKE_BINARY_DIR}/deb)
include(CPack)
