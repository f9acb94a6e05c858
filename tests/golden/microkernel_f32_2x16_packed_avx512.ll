; ModuleID = "microkernel_f32_2x16_packed_packed"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"microkernel_f32_2x16_packed_packed"(i64 %"kc", ptr noalias %"a", i64 %"lda", ptr noalias %"b", i64 %"ldb", ptr noalias %"c", i64 %"ldc", i64 %"cols", float %"alpha", float %"beta", ptr noalias %"ahead", i64 %"ahead_step") "min-legal-vector-width"="512" "no-builtins" "prefer-vector-width"="512" nounwind
{
entry:
  %"reg" = alloca <16 x float>
  %"reg.1" = alloca <16 x float>
  br label %"body"
body:
  %"sub" = sub i64 %"cols", 0
  %".15" = trunc i64 %"sub" to i32
  %".16" = insertelement <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".15", i32 0
  %"splat" = shufflevector <16 x i32> %".16", <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mask" = icmp sgt <16 x i32> %"splat", <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg"
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg.1"
  %"div" = udiv i64 %"kc", 4
  %"sub.1" = sub i64 %"div", 14
  %"lt" = icmp slt i64 %"sub.1", 0
  %"select" = select  i1 %"lt", i64 0, i64 %"sub.1"
  %".19" = icmp slt i64 0, %"div"
  br i1 %".19", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [0, %"body"], [%"next.1", %"done.1"]
  %"lt.1" = icmp slt i64 %"index", %"select"
  %"mul" = mul i64 %"index", %"ahead_step"
  %"at" = getelementptr float, ptr %"ahead", i64 %"mul"
  %"sub.2" = sub i64 %"index", %"select"
  %"mul.1" = mul i64 %"sub.2", %"ldc"
  %"at.1" = getelementptr float, ptr %"c", i64 %"mul.1"
  %"select.1" = select  i1 %"lt.1", ptr %"at", ptr %"at.1"
  call void @"llvm.prefetch.p0"(ptr %"select.1", i32 0, i32 2, i32 1)
  %"at.2" = getelementptr float, ptr %"select.1", i64 15
  call void @"llvm.prefetch.p0"(ptr %"at.2", i32 0, i32 2, i32 1)
  %"mul.2" = mul i64 %"index", 4
  %"add" = add i64 %"mul.2", 4
  %"mul.3" = mul i64 %"index", 4
  %".23" = icmp slt i64 %"mul.3", %"add"
  br i1 %".23", label %"loop.1", label %"done.1"
done:
  %"mul.7" = mul i64 %"div", 4
  %".33" = icmp slt i64 %"mul.7", %"kc"
  br i1 %".33", label %"loop.2", label %"done.2"
loop.1:
  %"index.1" = phi  i64 [%"mul.3", %"loop"], [%"next", %"loop.1"]
  %"mul.4" = mul i64 %"index.1", 16
  %"at.3" = getelementptr float, ptr %"b", i64 %"mul.4"
  %"load" = load <16 x float>, ptr %"at.3", align 64
  %"mul.5" = mul i64 %"index.1", 2
  %"at.4" = getelementptr float, ptr %"a", i64 %"mul.5"
  %"load.1" = load float, ptr %"at.4", align 4
  %".25" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.1", i32 0
  %"splat.1" = shufflevector <16 x float> %".25", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read" = load <16 x float>, <16 x float>* %"reg"
  %"fma" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.1", <16 x float> %"load", <16 x float> %"read")
  store <16 x float> %"fma", <16 x float>* %"reg"
  %"mul.6" = mul i64 %"index.1", 2
  %"add.1" = add i64 %"mul.6", 1
  %"at.5" = getelementptr float, ptr %"a", i64 %"add.1"
  %"load.2" = load float, ptr %"at.5", align 4
  %".27" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.2", i32 0
  %"splat.2" = shufflevector <16 x float> %".27", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.1" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.1" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.2", <16 x float> %"load", <16 x float> %"read.1")
  store <16 x float> %"fma.1", <16 x float>* %"reg.1"
  %"next" = add nsw i64 %"index.1", 1
  %".29" = icmp slt i64 %"next", %"add"
  br i1 %".29", label %"loop.1", label %"done.1"
done.1:
  %"next.1" = add nsw i64 %"index", 1
  %".31" = icmp slt i64 %"next.1", %"div"
  br i1 %".31", label %"loop", label %"done"
loop.2:
  %"index.2" = phi  i64 [%"mul.7", %"done"], [%"next.2", %"loop.2"]
  %"mul.8" = mul i64 %"index.2", 16
  %"at.6" = getelementptr float, ptr %"b", i64 %"mul.8"
  %"load.3" = load <16 x float>, ptr %"at.6", align 64
  %"mul.9" = mul i64 %"index.2", 2
  %"at.7" = getelementptr float, ptr %"a", i64 %"mul.9"
  %"load.4" = load float, ptr %"at.7", align 4
  %".35" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.4", i32 0
  %"splat.3" = shufflevector <16 x float> %".35", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.2" = load <16 x float>, <16 x float>* %"reg"
  %"fma.2" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.3", <16 x float> %"load.3", <16 x float> %"read.2")
  store <16 x float> %"fma.2", <16 x float>* %"reg"
  %"mul.10" = mul i64 %"index.2", 2
  %"add.2" = add i64 %"mul.10", 1
  %"at.8" = getelementptr float, ptr %"a", i64 %"add.2"
  %"load.5" = load float, ptr %"at.8", align 4
  %".37" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"load.5", i32 0
  %"splat.4" = shufflevector <16 x float> %".37", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"read.3" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.3" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.4", <16 x float> %"load.3", <16 x float> %"read.3")
  store <16 x float> %"fma.3", <16 x float>* %"reg.1"
  %"next.2" = add nsw i64 %"index.2", 1
  %".39" = icmp slt i64 %"next.2", %"kc"
  br i1 %".39", label %"loop.2", label %"done.2"
done.2:
  %"ne" = fcmp une float %"alpha", 0x3ff0000000000000
  br i1 %"ne", label %"then", label %"end"
then:
  %"read.4" = load <16 x float>, <16 x float>* %"reg"
  %".42" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"alpha", i32 0
  %"splat.5" = shufflevector <16 x float> %".42", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mul.11" = fmul <16 x float> %"read.4", %"splat.5"
  store <16 x float> %"mul.11", <16 x float>* %"reg"
  %"read.5" = load <16 x float>, <16 x float>* %"reg.1"
  %".44" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"alpha", i32 0
  %"splat.6" = shufflevector <16 x float> %".44", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mul.12" = fmul <16 x float> %"read.5", %"splat.6"
  store <16 x float> %"mul.12", <16 x float>* %"reg.1"
  br label %"end"
end:
  %"eq" = icmp eq i64 %"cols", 16
  br i1 %"eq", label %"then.1", label %"else"
then.1:
  %"eq.1" = fcmp oeq float %"beta",              0x0
  br i1 %"eq.1", label %"then.2", label %"else.1"
end.1:
  ret void
else:
  %"eq.2" = fcmp oeq float %"beta",              0x0
  br i1 %"eq.2", label %"then.3", label %"else.2"
then.2:
  %"mul.13" = mul i64 %"ldc", 0
  %"at.9" = getelementptr float, ptr %"c", i64 %"mul.13"
  %"read.6" = load <16 x float>, <16 x float>* %"reg"
  store <16 x float> %"read.6", ptr %"at.9", align 4
  %"at.10" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.7" = load <16 x float>, <16 x float>* %"reg.1"
  store <16 x float> %"read.7", ptr %"at.10", align 4
  br label %"end.2"
end.2:
  br label %"end.1"
else.1:
  %"mul.14" = mul i64 %"ldc", 0
  %"at.11" = getelementptr float, ptr %"c", i64 %"mul.14"
  %"read.8" = load <16 x float>, <16 x float>* %"reg"
  %".52" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.7" = shufflevector <16 x float> %".52", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"load.6" = load <16 x float>, ptr %"at.11", align 4
  %"fma.4" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.7", <16 x float> %"load.6", <16 x float> %"read.8")
  store <16 x float> %"fma.4", ptr %"at.11", align 4
  %"at.12" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.9" = load <16 x float>, <16 x float>* %"reg.1"
  %".54" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.8" = shufflevector <16 x float> %".54", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"load.7" = load <16 x float>, ptr %"at.12", align 4
  %"fma.5" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.8", <16 x float> %"load.7", <16 x float> %"read.9")
  store <16 x float> %"fma.5", ptr %"at.12", align 4
  br label %"end.2"
then.3:
  %"mul.15" = mul i64 %"ldc", 0
  %"at.13" = getelementptr float, ptr %"c", i64 %"mul.15"
  %"read.10" = load <16 x float>, <16 x float>* %"reg"
  call void @"llvm.masked.store.v16f32.p0"(<16 x float> %"read.10", ptr %"at.13", i32 4, <16 x i1> %"mask")
  %"at.14" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.11" = load <16 x float>, <16 x float>* %"reg.1"
  call void @"llvm.masked.store.v16f32.p0"(<16 x float> %"read.11", ptr %"at.14", i32 4, <16 x i1> %"mask")
  br label %"end.3"
end.3:
  br label %"end.1"
else.2:
  %"mul.16" = mul i64 %"ldc", 0
  %"at.15" = getelementptr float, ptr %"c", i64 %"mul.16"
  %"read.12" = load <16 x float>, <16 x float>* %"reg"
  %".62" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.9" = shufflevector <16 x float> %".62", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"load.8" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.15", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"fma.6" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.9", <16 x float> %"load.8", <16 x float> %"read.12")
  call void @"llvm.masked.store.v16f32.p0"(<16 x float> %"fma.6", ptr %"at.15", i32 4, <16 x i1> %"mask")
  %"at.16" = getelementptr float, ptr %"c", i64 %"ldc"
  %"read.13" = load <16 x float>, <16 x float>* %"reg.1"
  %".64" = insertelement <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, float %"beta", i32 0
  %"splat.10" = shufflevector <16 x float> %".64", <16 x float> <float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef, float undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"load.9" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.16", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"fma.7" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"splat.10", <16 x float> %"load.9", <16 x float> %"read.13")
  call void @"llvm.masked.store.v16f32.p0"(<16 x float> %"fma.7", ptr %"at.16", i32 4, <16 x i1> %"mask")
  br label %"end.3"
}

declare void @"llvm.prefetch.p0"(ptr %".1", i32 %".2", i32 %".3", i32 %".4")

declare <16 x float> @"llvm.fma.v16f32"(<16 x float> %".1", <16 x float> %".2", <16 x float> %".3")

declare void @"llvm.masked.store.v16f32.p0"(<16 x float> %".1", ptr %".2", i32 %".3", <16 x i1> %".4")

declare <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %".1", i32 %".2", <16 x i1> %".3", <16 x float> %".4")
