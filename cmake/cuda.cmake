# The plugin for GPUs: kernels by nvcc, which is called here and is no language of the project: nothing else needs it.

find_program(NVCC nvcc HINTS /usr/local/cuda/bin)
set(SLUICE_CUDA_ARCHITECTURES 80-real 89-real 90a-real 80-virtual CACHE STRING "what the plugin's kernels are compiled for")
set(SLUICE_CUDA_CHECKED 80-real 80-virtual) # by the tests
if(NVCC)
  get_filename_component(NVCC_REAL ${NVCC} REALPATH)
  get_filename_component(CUDA_HOME ${NVCC_REAL} DIRECTORY)
  get_filename_component(CUDA_HOME ${CUDA_HOME} DIRECTORY)
  find_path(CUDA_INCLUDE cuda_runtime_api.h HINTS ${CUDA_HOME}/include)
  find_library(CUDART_STATIC cudart_static HINTS ${CUDA_HOME}/lib64 ${CUDA_HOME}/lib)
  set(CUDA_RUNTIME ${CUDART_STATIC} rt dl pthread)
  # Compiled against and never linked; where the header is not, the plugin does without.
  find_file(CUBLASLT_HEADER cublasLt.h PATHS ${CUDA_INCLUDE} NO_DEFAULT_PATH)
  set(version "")
  if(CUDA_INCLUDE)
    file(STRINGS ${CUDA_INCLUDE}/cuda_runtime_api.h version REGEX "^#define CUDART_VERSION ")
  endif()
  string(REGEX MATCH "[0-9]+" version "${version}")
  if(version)
    math(EXPR version "${version} / 1000") # 13; of 12 the plugin runs with older drivers
  endif()
  find_file(CUBLASLT_LIBRARY libcublasLt.so.${version} PATHS ${CUDA_HOME}/lib64 ${CUDA_HOME}/lib NO_DEFAULT_PATH) # for a test
  find_file(NCCL_HEADER nccl.h PATHS ${CUDA_INCLUDE} NO_DEFAULT_PATH) # what we declare of NCCL is held to it
  find_file(NCCL_LIBRARY libnccl.so.2 PATHS ${CUDA_HOME}/lib64 ${CUDA_HOME}/lib) # for a test
  # A toolkit without its runtime, or one that does not take this compiler of C++, is none.
  if(NOT NVCC_WORKS)
    file(WRITE ${CMAKE_BINARY_DIR}/nvcc_works.cu "__global__ void k(float *x) { *x = 1; }\n")
    execute_process(
      COMMAND ${NVCC} -std=c++17 --compress-mode=size -Xptxas=-warn-spills,-Werror -gencode=arch=compute_80,code=sm_80
        -c ${CMAKE_BINARY_DIR}/nvcc_works.cu -o ${CMAKE_BINARY_DIR}/nvcc_works.o
      RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE why)
    if(result EQUAL 0 AND CUDA_INCLUDE AND CUDART_STATIC)
      set(NVCC_WORKS ON CACHE INTERNAL "")
    else()
      message(STATUS "${NVCC} is not used: header ${CUDA_INCLUDE}, runtime ${CUDART_STATIC}, test compilation: ${result} ${why}")
    endif()
  endif()
  if(NVCC_WORKS AND CUBLASLT_HEADER)
    set(CUBLASLT ON)
    if(NOT CUBLASLT_LIBRARY)
      set(CUBLASLT_LIBRARY "") # here
    endif()
  endif()
  if(NOT NCCL_LIBRARY)
    set(NCCL_LIBRARY "") # here
  endif()
  if(NOT NVCC_WORKS)
    set(NVCC "") # here; the cache keeps what was found
  endif()
endif()

set(CUDA_KERNELS
  attention/append attention/attend attention/attend_packed attention/attend_tensor attention/collect attention/digest attention/quantize attention/stats
  attention/stats_tensor
  dense/around dense/draw dense/few_rows dense/many_rows dense/matmul dense/pick dense/ranks dense/rows dense/some_rows dense/wgmma
  evict/choose evict/estimate evict/gather evict/merge evict/nearest_tensor evict/scores evict/select evict/value_change
  retrieve/rows retrieve/scan)
# Those of which launch.h says exact: a product and a sum are not fused, as they are not on the processors.
set(CUDA_EXACT
  attention/append attention/quantize dense/draw dense/ranks dense/rows evict/choose evict/gather evict/scores evict/select retrieve/rows
  retrieve/scan)

# sl_plugin(NAME target FOLDER dir [KEEP] ARCHITECTURES 80-real 80-virtual ...)
# Builds libsluice_cuda.so in a folder, on request only. A kernel whose registers spill does not compile.
# KEEP leaves the PTX in <build>/<target>/.
function(sl_plugin)
  cmake_parse_arguments(A "KEEP" "NAME;FOLDER" "ARCHITECTURES" ${ARGN})
  set(targets "")
  foreach(architecture IN LISTS A_ARCHITECTURES)
    if(NOT architecture MATCHES "^([0-9]+[af]?)-(real|virtual)$")
      message(FATAL_ERROR "SLUICE_CUDA_ARCHITECTURES: ${architecture} is not like 80-real or 80-virtual")
    endif()
    set(code ${CMAKE_MATCH_1})
    string(REPLACE real sm kind ${CMAKE_MATCH_2})
    string(REPLACE virtual compute kind ${kind})
    list(APPEND targets -gencode=arch=compute_${code},code=${kind}_${code})
  endforeach()
  set(objects "")
  foreach(kernel IN LISTS CUDA_KERNELS)
    set(source ${CMAKE_SOURCE_DIR}/engine/tensor/cuda/${kernel}.cu)
    string(REPLACE / _ name ${kernel})
    set(folder ${CMAKE_BINARY_DIR}/${A_NAME}/${name})
    file(MAKE_DIRECTORY ${folder})
    set(flags -std=c++17 -O3 --compress-mode=size -Xptxas=-warn-spills,-Werror -Werror=all-warnings
      -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Werror,-O2)
    # Instructions of 9.0a are no PTX for what is newer. The tests look at them whatever else they compile for.
    set(its_own "")
    if(kernel STREQUAL dense/wgmma AND NOT "90a-real" IN_LIST A_ARCHITECTURES)
      set(its_own -gencode=arch=compute_90a,code=sm_90a)
    endif()
    if(kernel IN_LIST CUDA_EXACT)
      list(APPEND flags -fmad=false)
    endif()
    if(A_KEEP)
      list(APPEND flags -keep -keep-dir ${folder})
    endif()
    add_custom_command(
      OUTPUT ${folder}.o
      COMMAND ${NVCC} ${flags} ${targets} ${its_own} -I${CMAKE_SOURCE_DIR} -MD -MF ${folder}.d -c ${source} -o ${folder}.o
      DEPENDS ${source}
      DEPFILE ${folder}.d
      COMMENT "Compiling engine/tensor/cuda/${kernel}.cu for GPUs"
      VERBATIM)
    list(APPEND objects ${folder}.o)
  endforeach()
  set_source_files_properties(${objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  add_library(${A_NAME}_kernels STATIC EXCLUDE_FROM_ALL ${objects})
  set_target_properties(${A_NAME}_kernels PROPERTIES LINKER_LANGUAGE CXX)
  set(drivers $<TARGET_OBJECTS:sl_engine_tensor_cuda_plugin> $<TARGET_OBJECTS:sl_engine_tensor_cuda_table>
    $<TARGET_OBJECTS:sl_engine_tensor_cuda_group>)
  add_library(${A_NAME} MODULE EXCLUDE_FROM_ALL ${drivers})
  set_target_properties(${A_NAME} PROPERTIES
    OUTPUT_NAME sluice_cuda LIBRARY_OUTPUT_DIRECTORY ${A_FOLDER} LINKER_LANGUAGE CXX)
  target_link_options(${A_NAME} PRIVATE LINKER:--exclude-libs,ALL LINKER:--as-needed LINKER:--no-undefined
    -static-libgcc -static-libstdc++)
  target_link_libraries(${A_NAME} PRIVATE ${A_NAME}_kernels sl_engine_tensor sl_base ${CUDA_RUNTIME})
endfunction()

# sl_gpu_check(NAME target SOURCES check.c ...): a program over the kernels as they are in sluice_cuda, for a machine with a device.
function(sl_gpu_check)
  cmake_parse_arguments(A "" "NAME" "SOURCES" ${ARGN})
  add_executable(${A_NAME} EXCLUDE_FROM_ALL ${A_SOURCES})
  set_target_properties(${A_NAME} PROPERTIES
    LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/gpu-checks)
  target_include_directories(${A_NAME} PRIVATE ${CMAKE_SOURCE_DIR})
  target_include_directories(${A_NAME} SYSTEM PRIVATE ${CUDA_INCLUDE})
  # Linked as files: as targets they would bring the emulator. Kernels that are not needed stay out: they are large.
  add_dependencies(${A_NAME} sl_engine_tensor_cuda_plugin sl_engine_tensor_cuda_table)
  target_link_libraries(${A_NAME} PRIVATE
    sluice_cuda_kernels $<TARGET_FILE:sl_engine_tensor_cuda_plugin> $<TARGET_FILE:sl_engine_tensor_cuda_table>
    sl_engine_tensor_cpu sl_engine_tensor sl_base sluice::cmocka ${CUDA_RUNTIME} m)
endfunction()
