# CMake reads this right after `project(llama.cpp)`; scripts/setup.sh says so. The bindings' own
# CMakeLists.txt forces the cache entry to ON, for a library of chat tools and servers that specx
# never loads and that takes half of the build's time. A plain variable hides the cache entry.
set(LLAMA_BUILD_COMMON OFF)
