; ModuleID = "dots_f32_1x1"
target triple = "x86_64-unknown-linux-gnu"
target datalayout = ""

define void @"dots_f32_1x1"(ptr %"job", i64 %"part") "min-legal-vector-width"="512" "no-builtins" "prefer-vector-width"="512" nounwind
{
entry:
  %"reg" = alloca <16 x float>
  %"reg.1" = alloca <16 x float>
  br label %"body"
body:
  %"load" = load i64, ptr %"job", align 8
  %"at" = getelementptr i8, ptr %"job", i64 8
  %"load.1" = load i64, ptr %"at", align 8
  %"at.1" = getelementptr i8, ptr %"job", i64 16
  %"load.2" = load ptr, ptr %"at.1", align 8
  %"at.2" = getelementptr i8, ptr %"job", i64 24
  %"load.3" = load i64, ptr %"at.2", align 8
  %"at.3" = getelementptr i8, ptr %"job", i64 32
  %"load.4" = load ptr, ptr %"at.3", align 8
  %"at.4" = getelementptr i8, ptr %"job", i64 40
  %"load.5" = load i64, ptr %"at.4", align 8
  %"at.5" = getelementptr i8, ptr %"job", i64 48
  %"load.6" = load ptr, ptr %"at.5", align 8
  %"at.6" = getelementptr i8, ptr %"job", i64 56
  %"load.7" = load i64, ptr %"at.6", align 8
  %"at.7" = getelementptr i8, ptr %"job", i64 64
  %"load.8" = load i64, ptr %"at.7", align 8
  %"at.8" = getelementptr i8, ptr %"job", i64 72
  %"load.9" = load float, ptr %"at.8", align 4
  %"at.9" = getelementptr i8, ptr %"job", i64 80
  %"load.10" = load float, ptr %"at.9", align 4
  %"at.10" = getelementptr i8, ptr %"job", i64 88
  %"load.11" = load i64, ptr %"at.10", align 8
  %"mul" = mul i64 %"load.5", 0
  %"at.11" = getelementptr float, ptr %"load.4", i64 %"mul"
  %"mul.1" = mul i64 %"load", %"part"
  %"div" = udiv i64 %"mul.1", %"load.11"
  %"add" = add i64 %"part", 1
  %"mul.2" = mul i64 %"load", %"add"
  %"div.1" = udiv i64 %"mul.2", %"load.11"
  %"div.2" = udiv i64 %"load.1", 16
  %"mul.3" = mul i64 %"div.2", 16
  %"sub" = sub i64 %"div.1", %"div"
  %"div.3" = udiv i64 %"sub", 1
  %"add.1" = add i64 %"div", %"div.3"
  %".5" = icmp slt i64 %"div", %"add.1"
  br i1 %".5", label %"loop", label %"done"
loop:
  %"index" = phi  i64 [%"div", %"body"], [%"next.1", %"end.1"]
  %"mul.4" = mul i64 %"index", %"load.3"
  %"at.12" = getelementptr float, ptr %"load.2", i64 %"mul.4"
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg"
  %".8" = icmp slt i64 0, %"mul.3"
  br i1 %".8", label %"loop.1", label %"done.1"
done:
  %".34" = icmp slt i64 %"add.1", %"div.1"
  br i1 %".34", label %"loop.2", label %"done.2"
loop.1:
  %"index.1" = phi  i64 [0, %"loop"], [%"next", %"loop.1"]
  %"at.13" = getelementptr float, ptr %"at.11", i64 %"index.1"
  %"load.12" = load <16 x float>, ptr %"at.13", align 4
  %"at.14" = getelementptr float, ptr %"at.12", i64 %"index.1"
  %"load.13" = load <16 x float>, ptr %"at.14", align 4
  %"read" = load <16 x float>, <16 x float>* %"reg"
  %"fma" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.13", <16 x float> %"load.12", <16 x float> %"read")
  store <16 x float> %"fma", <16 x float>* %"reg"
  %"next" = add nsw i64 %"index.1", 16
  %".11" = icmp slt i64 %"next", %"mul.3"
  br i1 %".11", label %"loop.1", label %"done.1"
done.1:
  %"lt" = icmp slt i64 %"mul.3", %"load.1"
  br i1 %"lt", label %"then", label %"end"
then:
  %"sub.1" = sub i64 %"load.1", %"mul.3"
  %".14" = trunc i64 %"sub.1" to i32
  %".15" = insertelement <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".14", i32 0
  %"splat" = shufflevector <16 x i32> %".15", <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mask" = icmp sgt <16 x i32> %"splat", <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"at.15" = getelementptr float, ptr %"at.11", i64 %"mul.3"
  %"load.14" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.15", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"at.16" = getelementptr float, ptr %"at.12", i64 %"mul.3"
  %"load.15" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.16", i32 4, <16 x i1> %"mask", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"read.1" = load <16 x float>, <16 x float>* %"reg"
  %"fma.1" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.15", <16 x float> %"load.14", <16 x float> %"read.1")
  store <16 x float> %"fma.1", <16 x float>* %"reg"
  br label %"end"
end:
  %"read.2" = load <16 x float>, <16 x float>* %"reg"
  %".18" = shufflevector <16 x float> %"read.2", <16 x float> %"read.2", <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %".19" = shufflevector <16 x float> %"read.2", <16 x float> %"read.2", <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"sum" = fadd <8 x float> %".18", %".19"
  %".20" = shufflevector <8 x float> %"sum", <8 x float> %"sum", <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %".21" = shufflevector <8 x float> %"sum", <8 x float> %"sum", <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %"sum.1" = fadd <4 x float> %".20", %".21"
  %".22" = shufflevector <4 x float> %"sum.1", <4 x float> %"sum.1", <2 x i32> <i32 0, i32 1>
  %".23" = shufflevector <4 x float> %"sum.1", <4 x float> %"sum.1", <2 x i32> <i32 2, i32 3>
  %"sum.2" = fadd <2 x float> %".22", %".23"
  %".24" = shufflevector <2 x float> %"sum.2", <2 x float> %"sum.2", <1 x i32> <i32 0>
  %".25" = shufflevector <2 x float> %"sum.2", <2 x float> %"sum.2", <1 x i32> <i32 1>
  %"sum.3" = fadd <1 x float> %".24", %".25"
  %".26" = extractelement <1 x float> %"sum.3", i32 0
  %"mul.5" = fmul float %".26", %"load.9"
  %"eq" = fcmp oeq float %"load.10",              0x0
  br i1 %"eq", label %"then.1", label %"else"
then.1:
  %"mul.6" = mul i64 %"index", %"load.7"
  %"at.17" = getelementptr float, ptr %"load.6", i64 %"mul.6"
  %"mul.7" = mul i64 %"load.8", 0
  %"at.18" = getelementptr float, ptr %"at.17", i64 %"mul.7"
  store float %"mul.5", ptr %"at.18", align 4
  br label %"end.1"
end.1:
  %"next.1" = add nsw i64 %"index", 1
  %".32" = icmp slt i64 %"next.1", %"add.1"
  br i1 %".32", label %"loop", label %"done"
else:
  %"mul.8" = mul i64 %"index", %"load.7"
  %"at.19" = getelementptr float, ptr %"load.6", i64 %"mul.8"
  %"mul.9" = mul i64 %"load.8", 0
  %"at.20" = getelementptr float, ptr %"at.19", i64 %"mul.9"
  %"load.16" = load float, ptr %"at.20", align 4
  %"fma.2" = call float @"llvm.fma.f32"(float %"load.10", float %"load.16", float %"mul.5")
  store float %"fma.2", ptr %"at.20", align 4
  br label %"end.1"
loop.2:
  %"index.2" = phi  i64 [%"add.1", %"done"], [%"next.3", %"end.3"]
  %"mul.10" = mul i64 %"index.2", %"load.3"
  %"at.21" = getelementptr float, ptr %"load.2", i64 %"mul.10"
  store <16 x float> <float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0, float              0x0>, <16 x float>* %"reg.1"
  %".37" = icmp slt i64 0, %"mul.3"
  br i1 %".37", label %"loop.3", label %"done.3"
done.2:
  ret void
loop.3:
  %"index.3" = phi  i64 [0, %"loop.2"], [%"next.2", %"loop.3"]
  %"at.22" = getelementptr float, ptr %"at.11", i64 %"index.3"
  %"load.17" = load <16 x float>, ptr %"at.22", align 4
  %"at.23" = getelementptr float, ptr %"at.21", i64 %"index.3"
  %"load.18" = load <16 x float>, ptr %"at.23", align 4
  %"read.3" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.3" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.18", <16 x float> %"load.17", <16 x float> %"read.3")
  store <16 x float> %"fma.3", <16 x float>* %"reg.1"
  %"next.2" = add nsw i64 %"index.3", 16
  %".40" = icmp slt i64 %"next.2", %"mul.3"
  br i1 %".40", label %"loop.3", label %"done.3"
done.3:
  %"lt.1" = icmp slt i64 %"mul.3", %"load.1"
  br i1 %"lt.1", label %"then.2", label %"end.2"
then.2:
  %"sub.2" = sub i64 %"load.1", %"mul.3"
  %".43" = trunc i64 %"sub.2" to i32
  %".44" = insertelement <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, i32 %".43", i32 0
  %"splat.1" = shufflevector <16 x i32> %".44", <16 x i32> <i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef, i32 undef>, <16 x i32> <i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0, i32 0>
  %"mask.1" = icmp sgt <16 x i32> %"splat.1", <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7, i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"at.24" = getelementptr float, ptr %"at.11", i64 %"mul.3"
  %"load.19" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.24", i32 4, <16 x i1> %"mask.1", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"at.25" = getelementptr float, ptr %"at.21", i64 %"mul.3"
  %"load.20" = call <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %"at.25", i32 4, <16 x i1> %"mask.1", <16 x float> <float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0, float 0.0>)
  %"read.4" = load <16 x float>, <16 x float>* %"reg.1"
  %"fma.4" = call <16 x float> @"llvm.fma.v16f32"(<16 x float> %"load.20", <16 x float> %"load.19", <16 x float> %"read.4")
  store <16 x float> %"fma.4", <16 x float>* %"reg.1"
  br label %"end.2"
end.2:
  %"read.5" = load <16 x float>, <16 x float>* %"reg.1"
  %".47" = shufflevector <16 x float> %"read.5", <16 x float> %"read.5", <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>
  %".48" = shufflevector <16 x float> %"read.5", <16 x float> %"read.5", <8 x i32> <i32 8, i32 9, i32 10, i32 11, i32 12, i32 13, i32 14, i32 15>
  %"sum.4" = fadd <8 x float> %".47", %".48"
  %".49" = shufflevector <8 x float> %"sum.4", <8 x float> %"sum.4", <4 x i32> <i32 0, i32 1, i32 2, i32 3>
  %".50" = shufflevector <8 x float> %"sum.4", <8 x float> %"sum.4", <4 x i32> <i32 4, i32 5, i32 6, i32 7>
  %"sum.5" = fadd <4 x float> %".49", %".50"
  %".51" = shufflevector <4 x float> %"sum.5", <4 x float> %"sum.5", <2 x i32> <i32 0, i32 1>
  %".52" = shufflevector <4 x float> %"sum.5", <4 x float> %"sum.5", <2 x i32> <i32 2, i32 3>
  %"sum.6" = fadd <2 x float> %".51", %".52"
  %".53" = shufflevector <2 x float> %"sum.6", <2 x float> %"sum.6", <1 x i32> <i32 0>
  %".54" = shufflevector <2 x float> %"sum.6", <2 x float> %"sum.6", <1 x i32> <i32 1>
  %"sum.7" = fadd <1 x float> %".53", %".54"
  %".55" = extractelement <1 x float> %"sum.7", i32 0
  %"mul.11" = fmul float %".55", %"load.9"
  %"eq.1" = fcmp oeq float %"load.10",              0x0
  br i1 %"eq.1", label %"then.3", label %"else.1"
then.3:
  %"mul.12" = mul i64 %"index.2", %"load.7"
  %"at.26" = getelementptr float, ptr %"load.6", i64 %"mul.12"
  %"mul.13" = mul i64 %"load.8", 0
  %"at.27" = getelementptr float, ptr %"at.26", i64 %"mul.13"
  store float %"mul.11", ptr %"at.27", align 4
  br label %"end.3"
end.3:
  %"next.3" = add nsw i64 %"index.2", 1
  %".61" = icmp slt i64 %"next.3", %"div.1"
  br i1 %".61", label %"loop.2", label %"done.2"
else.1:
  %"mul.14" = mul i64 %"index.2", %"load.7"
  %"at.28" = getelementptr float, ptr %"load.6", i64 %"mul.14"
  %"mul.15" = mul i64 %"load.8", 0
  %"at.29" = getelementptr float, ptr %"at.28", i64 %"mul.15"
  %"load.21" = load float, ptr %"at.29", align 4
  %"fma.5" = call float @"llvm.fma.f32"(float %"load.10", float %"load.21", float %"mul.11")
  store float %"fma.5", ptr %"at.29", align 4
  br label %"end.3"
}

declare <16 x float> @"llvm.fma.v16f32"(<16 x float> %".1", <16 x float> %".2", <16 x float> %".3")

declare <16 x float> @"llvm.masked.load.v16f32.p0"(ptr %".1", i32 %".2", <16 x i1> %".3", <16 x float> %".4")

declare float @"llvm.fma.f32"(float %".1", float %".2", float %".3")
