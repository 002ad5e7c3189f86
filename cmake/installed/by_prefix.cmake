# Part of the installation: what depends on the prefix, which `cmake --install --prefix` may change.

# systemd's units. Of workers, of which a machine may have several, a template besides: sluice-decode@NAME is worker
# decode-HOSTNAME-NAME, with options of its own in /etc/sluice/sluice-decode-NAME.env.

file(GLOB units ${source_folder}/deploy/systemd/*.service)
set(made "")
foreach(unit IN LISTS units)
  get_filename_component(program ${unit} NAME_WE)
  file(READ ${unit} text)
  string(REPLACE "=/usr/local/bin/" "=${CMAKE_INSTALL_PREFIX}/${bin_folder}/" text "${text}")
  file(WRITE ${build_folder}/installed/${program}.service "${text}")
  list(APPEND made ${build_folder}/installed/${program}.service)
  if(text MATCHES "--name=[a-z]+-%H")
    string(REGEX REPLACE "(--name=[a-z]+-%H)" "\\1-%i" text "${text}")
    string(REGEX REPLACE "(Description=[^\n]*)" "\\1 %i" text "${text}")
    string(REPLACE "EnvironmentFile=-/etc/sluice/${program}.env" "EnvironmentFile=-/etc/sluice/${program}.env\nEnvironmentFile=-/etc/sluice/${program}-%i.env" text "${text}")
    string(REPLACE "StateDirectory=${program}\n" "StateDirectory=${program}-%i\n" text "${text}")
    file(WRITE ${build_folder}/installed/${program}@.service "${text}")
    list(APPEND made ${build_folder}/installed/${program}@.service)
  endif()
endforeach()
file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/lib/systemd/system TYPE FILE FILES ${made})

set(functions site-functions)
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(functions vendor-completions)
endif()
file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${data_folder}/zsh/${functions} TYPE FILE FILES ${build_folder}/reference/zsh/_sluice)
