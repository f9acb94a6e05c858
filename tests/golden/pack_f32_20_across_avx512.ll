; ModuleID = "pack_f32_20_across"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"pack_f32_20_across"(i64 %"kc", i64 %"width", i64 %"valid", ptr noalias %"source", i64 %"step_i", i64 %"step_p", ptr noalias %"dst") "min-legal-vector-width"="512" "no-builtins" "prefer-vector-width"="512" nounwind
{
entry:
  br label %"body"
body:
  %"sub" = sub i64 %"valid", 0
  %".10" = trunc i64 %"sub" to i32
  %".11" = insertelement <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".10", i32 0
  %"splat" = shufflevector <16 x i32> %".11", <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mask" = icmp sgt <16 x i32> %"splat", <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"sub.1" = sub i64 %"valid", 16
  %".12" = trunc i64 %"sub.1" to i32
  %".13" = insertelement <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".12", i32 0
  %"splat.1" = shufflevector <16 x i32> %".13", <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mask.1" = icmp sgt <16 x i32> %"splat.1", <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %".14" = icmp slt i64 0, %"kc"
  br i1 %".14", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [0, %"body"], [%"next", %"loop"]
  %"add" = add i64 %"index", 32
  %"mul" = mul i64 %"add", %"step_p"
  %"at" = getelementptr float, ptr %"source", i64 %"mul"
  call void @"llvm.prefetch.p0"(ptr %"at", i32 0, i32 2, i32 1)
  %"add.1" = add i64 %"index", 32
  %"at.1" = getelementptr float, ptr %"source", i64 16
  %"mul.1" = mul i64 %"add.1", %"step_p"
  %"at.2" = getelementptr float, ptr %"at.1", i64 %"mul.1"
  call void @"llvm.prefetch.p0"(ptr %"at.2", i32 0, i32 2, i32 1)
  %"mul.2" = mul i64 %"index", %"width"
  %"at.3" = getelementptr float, ptr %"dst", i64 %"mul.2"
  %"mul.3" = mul i64 %"index", %"step_p"
  %"at.4" = getelementptr float, ptr %"source", i64 %"mul.3"
  %"load" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.4", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  store <16 x float> %"load", ptr %"at.3", align 4
  %"mul.4" = mul i64 %"index", %"width"
  %"at.5" = getelementptr float, ptr %"dst", i64 %"mul.4"
  %"at.6" = getelementptr float, ptr %"at.5", i64 16
  %"at.7" = getelementptr float, ptr %"source", i64 16
  %"mul.5" = mul i64 %"index", %"step_p"
  %"at.8" = getelementptr float, ptr %"at.7", i64 %"mul.5"
  %"load.1" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.8", i32 4, <16 x i1> %"mask.1", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  store <16 x float> %"load.1", ptr %"at.6", align 4
  %"next" = add nsw i64 %"index", 1
  %".20" = icmp slt i64 %"next", %"kc"
  br i1 %".20", label %"loop", label %"done"
done:
  ret void
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

declare <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %".1", i32 %".2", <16 x i1> %".3", <16 x float> %".4")
