# Compiler flags of the whole project, and three functions: one a kind of target.

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_CXX_STANDARD 17) # kernels of engine/tensor/cuda, and what runs them without a GPU
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # POSIX and GNU interfaces: clock_gettime, pthread_setname_np
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

add_compile_options(-Wall -Wextra -Werror -Wshadow -Wvla -Wundef -fno-math-errno -fno-common -fvisibility=hidden)
add_compile_options("$<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes;-Wmissing-prototypes>")
# A parameter that a function does not use has no name, as in C23. gcc allows that in C17; clang warns, and so the fuzzers' build.
add_compile_options($<$<COMPILE_LANG_AND_ID:C,Clang>:-Wno-c2x-extensions>)
# snprintf() is chosen because it cuts; under the sanitizers gcc's guesses about lengths are poor besides.
add_compile_options($<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>)
# No struct of more than 4 kB is passed or returned by value. gcc has no such warning: the fuzzers' build, by clang, shows it.
add_compile_options($<$<COMPILE_LANG_AND_ID:C,Clang>:-Wlarge-by-value-copy=4096>)
add_compile_definitions(_GNU_SOURCE)
# Results must not depend on how the compiler feels about a*b+c: fused where we say so, nowhere else.
add_compile_options(-ffp-contract=off)

if(SLUICE_ASAN AND SLUICE_TSAN)
  message(FATAL_ERROR "SLUICE_ASAN and SLUICE_TSAN exclude each other")
endif()
if(SLUICE_ASAN)
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(SLUICE_TSAN)
  add_compile_options(-fsanitize=thread -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
endif()

# The fuzzers' build links the libraries of the surrounding build, which SLUICE_FUZZ names, as they are. Their sources are only parsed
# there, so that clang's warnings hold for them; tests/fuzz compiles what the fuzzers test by the saved rule.
if(SLUICE_FUZZ)
  set(compile_c ${CMAKE_C_COMPILE_OBJECT})
  foreach(language C CXX)
    set(CMAKE_${language}_COMPILE_OBJECT
      "<CMAKE_${language}_COMPILER> <DEFINES> <INCLUDES> <FLAGS> -fsyntax-only <SOURCE>" "${CMAKE_COMMAND} -E touch <OBJECT>")
    set(CMAKE_${language}_CREATE_STATIC_LIBRARY "${CMAKE_COMMAND} -E create_symlink ${SLUICE_FUZZ}/<TARGET> <TARGET>")
  endforeach()
endif()

# Test programs are linked by gold where it is (Debian's binutils): a fifth of the default linker's time, three hundred times.
include(CheckLinkerFlag)
check_linker_flag(C -fuse-ld=gold gold_links)
function(sl_link_fast target)
  if(gold_links AND NOT CMAKE_EXE_LINKER_FLAGS MATCHES "-fuse-ld=") # or the one that was asked for
    target_link_options(${target} PRIVATE -fuse-ld=gold)
  endif()
endfunction()

# Stack frames of the product have at most 4 kB: a larger struct has an owner on the heap. Sanitizers make frames larger,
# and without optimization gcc copies what a literal initializes. These folders have larger frames; a number, in bytes,
# also holds for the folders below, and may only fall.
set(path_frame 5120) # a path has 4096 (PATH_MAX)
foreach(folder base/options engine/kvcache engine/model engine/model/gguf engine/runtime engine/text/chat net/node net/trust)
  set(frame_bytes_${folder} ${path_frame})
endforeach()
set(frame_bytes_base 16640)                    # three paths, once a process
set(frame_bytes_client/cli 17920)              # the paths of a cluster's files
set(frame_bytes_client/cli/pull 65792)         # a buffer to copy with
set(frame_bytes_decode 10240)                  # the engine thread's state, here and in prefill
set(frame_bytes_engine/compress/evict/scores 8448) # a key and the center of keys, in f64
set(frame_bytes_prefill 12288)
set(frame_bytes_engine/compress/plan 6656)     # three numbers for each of 256 layers
set(frame_bytes_engine/compress/recipe 4352)   # two texts of recipes
set(frame_bytes_engine/job 8448)               # the estimates of 256 layers
set(frame_bytes_engine/offload/remote_kv 7424) # eight questions, with their errors
set(frame_bytes_engine/tensor 4194304)         # tiles of kernels: half of a thread's stack
set(frame_bytes_lab 42240)                     # results, and plans
set(frame_bytes_lab/train 263168)              # a block of queries and keys
set(frame_bytes_net/fabric 8448)               # buffers of datagrams and records
set(frame_bytes_net/fabric/link 16640)
set(frame_bytes_net/offload/prefill 14848)     # the shares of a segment

# Limits the frames of a target of this folder, or of the nearest folder above that has a number.
function(sl_limit_frames target)
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  while(folder AND NOT DEFINED frame_bytes_${folder})
    cmake_path(GET folder PARENT_PATH folder)
  endwhile()
  set(bytes 4096)
  if(folder)
    set(bytes ${frame_bytes_${folder}})
  endif()
  if(NOT (SLUICE_ASAN OR SLUICE_TSAN))
    target_compile_options(${target} PRIVATE
      $<$<AND:$<COMPILE_LANG_AND_ID:C,GNU>,$<NOT:$<CONFIG:Debug>>>:-Wframe-larger-than=${bytes}>)
  endif()
endfunction()

# The processor features that the files of a tier may use, in rising order; NEON needs no flag.
set(flags_AVX2 -mavx2 -mfma -mf16c -mno-avx512f) # also where CFLAGS name a processor with more
set(flags_AVX512 ${flags_AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq)
set(flags_AVX512VNNI ${flags_AVX512} -mavx512vnni)
set(flags_AVX512VBMI ${flags_AVX512VNNI} -mavx512vbmi)
set(flags_AVX512BF16 ${flags_AVX512VNNI} -mavx512bf16)
set(flags_AMX ${flags_AVX512BF16} -mamx-tile -mamx-bf16)
set(flags_NEON "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(tiers_here AVX2 AVX512 AVX512VNNI AVX512VBMI AVX512BF16 AMX)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(tiers_here NEON)
endif()

# sl_library(SOURCES a.c ... [AVX2 b.c ...] DEPS target ... PRIVATE_DEPS target ...)
# The static library of a folder, called after it: engine/compress/recipe is target sl_engine_compress_recipe. DEPS are the folders
# that it includes, as tools/lint_includes.py allows them. Includes are written from the repository's root. Files behind
# the name of an instruction set are compiled for it, where the processor's architecture has it. Kernels (.cu) are compiled
# as C++ for the emulator. A folder of headers has no SOURCES.
function(sl_library)
  set(sets AVX2 AVX512 AVX512VBMI AVX512VNNI AVX512BF16 AMX NEON)
  cmake_parse_arguments(A "" "" "SOURCES;${sets};DEPS;PRIVATE_DEPS" ${ARGN})
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(REPLACE / _ target sl_${folder})
  foreach(tier IN LISTS tiers_here)
    # Loops that are unrolled for many shapes: with lines alone a debugger shows as much of them, and the compiler takes a third less time.
    set_source_files_properties(${A_${tier}} PROPERTIES COMPILE_OPTIONS "${flags_${tier}};-g1")
    list(APPEND A_SOURCES ${A_${tier}})
  endforeach()
  if(NOT A_SOURCES)
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE ${A_DEPS})
    return()
  endif()
  set(kernels ${A_SOURCES})
  list(FILTER kernels INCLUDE REGEX "[.]cu$")
  set_source_files_properties(${kernels} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-fno-strict-aliasing;-g1")
  add_library(${target} STATIC ${A_SOURCES})
  # A build for ThreadSanitizer that hardly runs kernels names them here (tests/threads/run.sh).
  if(SLUICE_UNOPTIMIZED AND folder MATCHES "${SLUICE_UNOPTIMIZED}")
    target_compile_options(${target} PRIVATE -O0 -w) # other builds warn
  endif()
  sl_limit_frames(${target})
  target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target} PUBLIC ${A_DEPS} PRIVATE ${A_PRIVATE_DEPS})
endfunction()

# sl_program(NAME sluice-decode SOURCES main.c DEPS sl_decode ...): an executable in bin/.
function(sl_program)
  cmake_parse_arguments(A "" "NAME" "SOURCES;DEPS" ${ARGN})
  add_executable(${A_NAME} ${A_SOURCES})
  sl_limit_frames(${A_NAME})
  target_include_directories(${A_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${A_NAME} PRIVATE standard_streams ${A_DEPS})
endfunction()

# sl_test_object(test_request.c DEPS target ... OUT variable): compiles a source that several tests of a folder link once. The variable is
# what they name among their SOURCES.
function(sl_test_object source)
  cmake_parse_arguments(A "" "OUT" "DEPS" ${ARGN})
  file(RELATIVE_PATH folder ${CMAKE_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  string(REGEX REPLACE "[/.]" _ target ${folder}/${source})
  add_library(${target} OBJECT ${source})
  target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE ${A_DEPS} sluice::cmocka)
  set(${A_OUT} $<TARGET_OBJECTS:${target}> PARENT_SCOPE)
endfunction()

# sl_test(NAME unit_base_arena SOURCES test_arena.c DEPS sl_base [TIMEOUT seconds] [LABELS ...])
# A cmocka program in tests/bin/, run by ctest in the source folder, with the variables of test_environment if the folder sets that.
function(sl_test)
  cmake_parse_arguments(A "" "NAME;TIMEOUT" "SOURCES;DEPS;LABELS;ARGS" ${ARGN})
  add_executable(${A_NAME} ${A_SOURCES})
  set_target_properties(${A_NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/bin)
  target_include_directories(${A_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
  target_link_libraries(${A_NAME} PRIVATE ${A_DEPS} sluice::cmocka)
  sl_link_fast(${A_NAME})
  add_test(NAME ${A_NAME} COMMAND ${A_NAME} ${A_ARGS} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  if(NOT A_TIMEOUT)
    set(A_TIMEOUT 300) # what computes for half a minute takes four times as long beside others
  endif()
  if(SLUICE_ASAN OR SLUICE_TSAN)
    math(EXPR A_TIMEOUT "${A_TIMEOUT} * 8") # they are 10 to 20 times slower, and ours are far below their limit
  endif()
  set_tests_properties(${A_NAME} PROPERTIES TIMEOUT ${A_TIMEOUT} LABELS "${A_LABELS}"
    ENVIRONMENT "UCX_MEM_EVENTS=n;UCX_HANDLE_ERRORS=none;SLUICE_BIN=${CMAKE_BINARY_DIR}/bin;TSAN_OPTIONS=ignore_noninstrumented_modules=1 suppressions=${CMAKE_SOURCE_DIR}/tests/tsan.supp;LSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/lsan.supp")
  set_property(TEST ${A_NAME} APPEND PROPERTY ENVIRONMENT ${test_environment})
endfunction()

# Makes allocations fail on request in an sl_test() (tests/unit/scarce.h).
function(sl_test_scarce name)
  target_sources(${name} PRIVATE ${CMAKE_SOURCE_DIR}/tests/unit/scarce.c)
  foreach(call malloc calloc realloc aligned_alloc strdup strndup)
    target_link_options(${name} PRIVATE LINKER:--wrap=${call})
  endforeach()
endfunction()
